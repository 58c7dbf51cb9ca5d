"""One tuner at a time on a device: a lock that the system releases however its holder ends."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunedex.core.errors import CannotRun
from tunedex.tuner.devices import DetectedDevice

_log = logging.getLogger(__name__)


@contextmanager
def device_lock(detected: DetectedDevice) -> Iterator[None]:
    """Hold the device for this process, against every other of this host, whichever user's.

    The lock is by the card's UUID, or by the key of a CPU. Where no lock file can be had, there is no lock, and a
    warning says so.

    Raises:
        CannotRun: another process tunes on the device.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path = _path(detected)
    try:
        descriptor = _opened(path)
    except OSError as error:
        _log.warning("nothing keeps others from tuning %s meanwhile: %s: %s", detected.selector, path, error.strerror)
        yield
        return
    try:
        with contextlib.suppress(OSError):  # another user's file: it is open, that is enough
            os.fchmod(descriptor, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise CannotRun(
                f"{detected.selector} is being tuned by process {holder}: two at once would spoil each other's times; "
                "wait for it to end"
            ) from None
        with contextlib.suppress(OSError):  # a file that is not ours to write locks all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """A descriptor of the lock file, made where there is none.

    One that is there is opened without O_CREAT, with which Linux refuses other users' files in a folder such as /tmp
    (``fs.protected_regular``).
    """
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def lock_name(detected: DetectedDevice) -> str:
    """What the device's lock is called: the same for every process of this host that means this device."""
    name = detected.uuid or detected.device.key
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def host_name() -> str:
    """What this host is called beside its locks: a hash, the same for every process."""
    machine = ""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_text(encoding="utf-8", errors="replace").strip()
    return hashlib.sha256(f"{machine} {platform.node()}".encode()).hexdigest()[:16]


def _path(detected: DetectedDevice) -> Path:
    """In the folder that all users and containers of a host most likely share."""
    return Path(tempfile.gettempdir()) / f"tunedex-{lock_name(detected)}.lock"
