"""From what a caller names, or the settings name, to a client that answers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

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

log = logging.getLogger("tunedex.client")


class DatabaseSource(Source, Protocol):
    """A database as a source; ``file`` is that of an embedded one, None for a shared one."""

    file: Path | None


#: Makes a source of a database's URL or path.
OpenDatabase = Callable[[str], DatabaseSource]

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
    """`tunedex.connect` with the way to open a database.

    An argument that is wrong is refused; a setting that is wrong is not followed, which is logged once a process and
    stands in the client's status.
    """
    check_channel(channel)
    ignored = ""
    if revision is not None:
        pin: int | None = whole_number("revision", revision)
    else:
        pin, ignored = _pinned()
    opened = source_of(source, open_database)
    known, trouble = None, ""
    try:
        known = device_named(device)
    except DeviceError as error:
        trouble = str(error)
    client = Client(
        opened,
        known,
        channel=channel,
        revision=pin,
        signatures=builtin_signatures(),
        trouble=trouble,
        ignored=ignored,
    )
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
    exists, else none but the built-in kernels. A setting that names no source is not followed.

    Raises:
        BadInput: ``source`` can be no source, or names a file that is not there.
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
        opened = open_database(text)
        if opened.file is not None:
            _check_there(opened.file)
        return opened
    raise BadInput(f"source {scheme}:// is unknown; it would be {_SHAPES}", field="source")


_SHAPES = "http(s)://HOST, a snapshot file, sqlite:///FILE or postgresql://USER@HOST/NAME"


def _configured(open_database: OpenDatabase) -> Source:
    makers: tuple[tuple[str, Callable[[str], Source]], ...] = (
        ("TUNEDEX_URL", lambda url: source_of(url, open_database)),
        ("TUNEDEX_DB", open_database),
    )
    for setting, make in makers:
        if url := os.environ.get(setting):
            try:
                return make(url)
            except TunedexError as error:
                trouble = f"{setting}: {error}"
                _warn(f"no answers but defaults: {trouble}")
                return BuiltinSource(trouble)
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


def _pinned() -> tuple[int | None, str]:
    """The revision that TUNEDEX_PIN names, and why it is not followed where it names none."""
    try:
        return (whole_number("TUNEDEX_PIN", pin), "") if (pin := os.environ.get("TUNEDEX_PIN")) else (None, "")
    except BadInput as error:
        _warn(f"{error}; the newest revision answers")
        return None, str(error)


@cache
def _warn(message: str) -> None:
    """Say once what a setting is wrong about."""
    log.warning("%s", message)


def _check_there(path: Path) -> None:
    """Refuse a path where nothing is, or a folder; what is there and cannot be looked at may be readable later.

    Raises:
        BadInput: which of these it is.
    """
    try:
        folder = path.is_dir()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"source {str(path)!r} is no file that exists; it would be {_SHAPES}", field="source") from None
    except (OSError, ValueError):
        return
    if folder:
        raise BadInput(f"source {str(path)!r} is a folder; it would be {_SHAPES}", field="source")


def _by_content(path: Path, open_database: OpenDatabase) -> Source:
    """A file's source: a database by its first bytes or, where it is empty, by its suffix.

    Raises:
        BadInput: there is no such file.
    """
    _check_there(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
    except (OSError, ValueError):
        start = b""
    named_so = not start and path.suffix in DATABASE_SUFFIXES
    return open_database(str(path)) if start == SQLITE_MAGIC or named_so else FileSource(path)
