"""The last snapshot of every source, on disk, so that a process starts while the server is away.

A file is a header line and the snapshot's canonical JSON; the header holds the entity tag and the SHA-256 of both. A
file that is not exactly that is a miss, logged once, and replaced by the next write. Names are hashes, so their
length is bounded whatever the source is called. Where the folder cannot be written, snapshots stay in memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunedex.client.settings import SETTINGS
from tunedex.core.canonical import canonical_json, key_of
from tunedex.core.errors import BadInput
from tunedex.core.files import read_bounded, write_whole
from tunedex.core.folders import cache_folder
from tunedex.core.snapshot import Snapshot

log = logging.getLogger("tunedex.client")

FORMAT = "tunedex-cache"
VERSION = 1


@dataclass(frozen=True)
class Stamped:
    """A snapshot with the entity tag under which its source gave it."""

    snapshot: Snapshot
    etag: str = ""


@dataclass(frozen=True)
class Slot:
    """The place of one source's snapshot of one device on one channel, at ``revision`` or at the newest."""

    source: str
    device: str
    channel: str
    revision: int | None

    @property
    def path(self) -> Path:
        """The file of this slot.

        Raises:
            RuntimeError: the user has neither a cache folder nor a home.
            ValueError: the source's name cannot be encoded.
        """
        return cache_folder() / "snapshots" / f"{key_of([self.source, self.device, self.channel, self.revision])}.json"

    def read(self) -> Stamped | None:
        """What the slot holds; None where it holds nothing, or nothing that is whole. Never raises."""
        try:
            path = self.path
        except (RuntimeError, ValueError):
            return None
        try:
            return _parse(read_bounded(path, SETTINGS.snapshot_bytes))
        except FileNotFoundError:
            if path.is_symlink():
                _log_once(path, "it is a link to nothing")
        except (OSError, BadInput) as error:
            _log_once(path, str(error))
        return None

    def write(self, stamped: Stamped) -> bool:
        """Put ``stamped`` into the slot, whole or not at all; False where the folder cannot be written. Never
        raises."""
        body = canonical_json(stamped.snapshot.to_dict()).encode()
        header = {"format": FORMAT, "version": VERSION, "etag": stamped.etag, "sha256": _checksum(stamped.etag, body)}
        content = canonical_json(header).encode() + b"\n" + body
        try:
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            write_whole(path, content)
        except (OSError, RuntimeError, ValueError) as error:
            _log_once(None, f"snapshots are not kept on disk: {error}")
            return False
        return True


def read_snapshot(body: bytes) -> Snapshot:
    """Read a snapshot document.

    Raises:
        BadInput: it is not one.
    """
    try:
        return Snapshot.from_dict(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a snapshot: {error}", field="snapshot") from error


def _parse(content: bytes) -> Stamped:
    line, _, body = content.partition(b"\n")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        raise BadInput("it has no header of a snapshot in a cache", field="snapshot")
    etag = str(header.get("etag"))
    if header.get("sha256") != _checksum(etag, body):
        raise BadInput("it is damaged: its checksum differs", field="snapshot")
    return Stamped(read_snapshot(body), etag)


def _checksum(etag: str, body: bytes) -> str:
    return hashlib.sha256(etag.encode(errors="replace") + b"\n" + body).hexdigest()


@cache
def _log_once(path: Path | None, reason: str) -> None:
    log.warning("%s", f"cached snapshot {path} is not used: {reason}" if path else reason)
