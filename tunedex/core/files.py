"""Files of people: read where they are regular and of a bounded size, written so that a reader finds the old one or the
new one, whole."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from tunedex.core.errors import BadInput

#: The largest document that is read: one of a million problems is smaller.
DOCUMENT_BYTES = 2**28


def read_bounded(path: Path, limit_bytes: int = DOCUMENT_BYTES) -> bytes:
    """The bytes of a regular file of at most ``limit_bytes``. A device or a pipe, which may never end, is none.

    Raises:
        OSError: it cannot be read.
        BadInput: it is no regular file, or too large.
    """
    # A pipe is opened without waiting for whoever writes to it.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise BadInput(f"{path} is no regular file")
        content = file.read(limit_bytes + 1) if found.st_size <= limit_bytes else b""
    if found.st_size > limit_bytes or len(content) > limit_bytes:
        raise BadInput(f"{path} has {max(found.st_size, len(content))} bytes; at most {limit_bytes} are read")
    return content


def check_target(path: Path, is_ours: Callable[[bytes], bool], what: str) -> None:
    """See that ``--out`` may be ``path``: it can be written, and nothing but an older ``what`` would be lost.

    Raises:
        BadInput: there is something else, or no folder for it.
    """
    if not path.parent.is_dir():
        raise BadInput(f"--out {path}: there is no folder {path.parent}", field="out")
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"--out {path}: the folder {path.parent} cannot be written", field="out")
    if not path.exists() and not path.is_symlink():
        return
    if path.exists() and not path.is_file():
        raise BadInput(f"--out {path} is no regular file; give another name", field="out")
    try:
        ours = is_ours(read_bounded(path))
    except (OSError, BadInput):
        ours = False
    if not ours:
        raise BadInput(f"--out {path} is there and is no {what}; give another name", field="out")


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all, beside it first and then in its place. Its mode is the
    umask's, as that of any new file.

    Raises:
        OSError: the folder cannot be written or is full, or ``path`` is a folder; its ``filename`` is ``path``.
    """
    beside = path.with_name(f".new-{secrets.token_hex(8)}")
    try:
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(content)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
