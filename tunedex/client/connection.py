"""From what a caller names, or the settings name, to a client that answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tunedex.client.client import Client
from tunedex.client.device import device_named
from tunedex.client.sources import BuiltinSource, FileSource, HttpSource, Source
from tunedex.core.catalog import builtin_signatures
from tunedex.core.channel import check_channel
from tunedex.core.device import Device
from tunedex.core.display import without_password
from tunedex.core.errors import BadInput, DeviceError, MissingExtra, TunedexError
from tunedex.core.folders import default_database
from tunedex.core.signature import whole_number

#: Makes a source of a database's URL or path.
OpenDatabase = Callable[[str], Source]

DATABASE_SCHEMES = ("sqlite", "sqlite+pysqlite", "postgresql", "postgres", "postgresql+psycopg")
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
SQLITE_MAGIC = b"SQLite format 3\0"


def connect(
    source: str | os.PathLike[str] | None,
    *,
    device: Device | str | None,
    channel: str,
    revision: int | None,
    open_database: OpenDatabase,
) -> Client:
    """`tunedex.connect` with the way to open a database."""
    check_channel(channel)
    pin = revision if revision is not None else os.environ.get("TUNEDEX_PIN") or None
    pin = None if pin is None else whole_number("revision" if revision is not None else "TUNEDEX_PIN", pin)
    opened = source_of(source, open_database)
    known, trouble = None, ""
    try:
        known = device_named(device)
    except DeviceError as error:
        trouble = str(error)
    client = Client(opened, known, channel=channel, revision=pin, signatures=builtin_signatures(), trouble=trouble)
    client.start()
    return client


def without_source(device: object, trouble: str) -> Client:
    """A client that has nothing but the built-in kernels' defaults, because of ``trouble``. Never raises."""
    try:
        known = device_named(device)  # type: ignore[arg-type]
    except TunedexError:
        known = None
    return Client(BuiltinSource(trouble), known, signatures=builtin_signatures(), trouble=trouble)


def source_of(source: str | os.PathLike[str] | None, open_database: OpenDatabase) -> Source:
    """The source that ``source`` names; for None the one that the settings name, else the user's own database if it
    exists, else none but the built-in kernels.

    Raises:
        BadInput: it can be no source.
    """
    if source is None:
        return _configured(open_database)
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"source is a {type(source).__name__}; it would be {_SHAPES}", field="source")
    text = os.fspath(source)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        shown = without_password(text) if isinstance(text, str) else text
        raise BadInput(f"source {shown!r} is not {_SHAPES}", field="source")
    scheme, separator, _ = text.partition("://")
    if not separator:
        return _by_content(Path(os.path.expanduser(text)), open_database)  # noqa: PTH111 - leaves an unknown ~user as it is
    if scheme in ("http", "https"):
        return HttpSource(text)
    if scheme in DATABASE_SCHEMES:
        return open_database(text)
    raise BadInput(f"source {scheme}:// is unknown; it would be {_SHAPES}", field="source")


_SHAPES = "http(s)://HOST, a snapshot file, sqlite:///FILE or postgresql://USER@HOST/NAME"


def _configured(open_database: OpenDatabase) -> Source:
    if url := os.environ.get("TUNEDEX_URL"):
        return source_of(url, open_database)
    if url := os.environ.get("TUNEDEX_DB"):
        return open_database(url)
    try:
        path = default_database()
        exists = path.is_file()
    except (OSError, RuntimeError):  # no home folder
        return BuiltinSource()
    if not exists:
        return BuiltinSource()
    try:
        return open_database(str(path))
    except MissingExtra as error:
        return BuiltinSource(f"{path} is not read: {error}")


def _by_content(path: Path, open_database: OpenDatabase) -> Source:
    """A path's source: a database by its first bytes or, where there is nothing yet, by its suffix."""
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
    except (OSError, ValueError):
        start = b""
    named_so = not start and path.suffix in DATABASE_SUFFIXES
    return open_database(str(path)) if start == SQLITE_MAGIC or named_so else FileSource(path)
