"""Connections to either kind of database, and the one place where a driver's error becomes ours."""

from __future__ import annotations

import os
import re
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Pool, QueuePool, create_engine, event
from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError, IntegrityError, SQLAlchemyError

from tunedex.core.display import one_line
from tunedex.core.errors import BadInput, DatabaseError, TunedexError
from tunedex.db.types import Unreadable
from tunedex.db.urls import default_file, embedded_path, spelled

#: How long a writer waits for another's short transaction on an embedded database.
BUSY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10

_HEADER = b"SQLite format 3\0"

#: How SQLite and PostgreSQL say that a table or a column is not there.
_MISSING = re.compile(r"no such (table|column)|has no column|(relation|column) .* does not exist")

# An execution option: this connection's transactions write, so they take SQLite's write lock when they begin. One
# that began by reading cannot wait for the lock later: its view of the data may be out of date by then.
WRITES = "tunedex_writes"

# The open engines; and the pools that a forked child leaves untouched, because closing the parent's connections
# would end its sessions.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Pool] = []


def connect(url: URL, *, create: bool) -> Engine:
    """An engine for ``url``; an SQLite file that cannot be written is opened for reading.

    Raises:
        BadInput: the folder that it would be in is not there.
        DatabaseError: there is no database there, or none that can be opened.
    """
    engine = _embedded(Path(url.database or ""), create=create) if embedded(url) else _shared(url)
    _engines.add(engine)
    return engine


@contextmanager
def opened(url: URL, *, create: bool) -> Iterator[Engine]:
    """An engine for what is done on opening: errors are translated, and close it. It stays open otherwise.

    Raises:
        DatabaseError: the database cannot be opened, or not be used.
    """
    with translated(url):
        engine = connect(url, create=create)
        try:
            yield engine
        except BaseException:
            engine.dispose()
            raise


def embedded(url: URL) -> bool:
    """Whether ``url`` is of the embedded kind of database, SQLite."""
    return url.get_backend_name() == "sqlite"


def read_only(path: Path) -> bool:
    """Whether an existing file can be read and not written."""
    return path.exists() and not os.access(path, os.W_OK)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn a driver's errors into one line of ours.

    Raises:
        BadInput: a text or a number is of a kind that the database cannot hold.
        DatabaseError: the database cannot be opened, read or written.
    """
    try:
        yield
    except TunedexError:
        raise
    except (DataError, OverflowError, UnicodeEncodeError) as error:
        reason = one_line(error.orig if isinstance(error, DataError) else error)
        raise BadInput(f"a value that no database column holds: {reason}") from error
    except IntegrityError as error:
        reason = one_line(error.orig)
        hint = (
            "; devices, environments and sweeps come before what refers to them" if "foreign" in reason.lower() else ""
        )
        raise DatabaseError(f"database {name_of(url)}: {reason}{hint}") from error
    except DBAPIError as error:
        reason = one_line(error.orig)
        hint = "; `tuner db check` says what else is missing" if _MISSING.search(reason) else ""
        raise DatabaseError(f"database {name_of(url)}: {reason}{hint}") from error
    except SQLAlchemyError as error:
        raise DatabaseError(f"database {name_of(url)}: {one_line(error)}") from error
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(f"database {name_of(url)}: {one_line(error)}") from error


def name_of(url: URL) -> str:
    """``url`` as a message may show it: a file's path, or a URL without its password."""
    return url.database or "" if embedded(url) else spelled(url)


def _shared(url: URL) -> Engine:
    return create_engine(
        url,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "tunedex",
            "options": "-c timezone=UTC",
        },
    )


def _embedded(path: Path, *, create: bool) -> Engine:
    if not present(path, to_make=create):
        if not create:
            raise DatabaseError(f"there is no database {path}; `tuner sweep` or `tuner db upgrade` makes one")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseError(f"database {path} cannot be made: {error.strerror}: {path.parent}") from error
    for_reading = read_only(path)
    engine = create_engine("sqlite+pysqlite://", creator=lambda: _open_file(path, for_reading), poolclass=QueuePool)
    event.listen(engine, "begin", _begin)
    _follow(engine, path)
    return engine


def _follow(engine: Engine, path: Path) -> None:
    """Use the file that is at ``path`` now: a connection that is kept goes on reading one that was replaced since."""

    def file() -> tuple[int, int] | None:
        try:
            found = path.stat()
        except OSError:  # gone, or out of reach for now: what is open still answers
            return None
        return found.st_dev, found.st_ino

    def connected(_: object, record: Any) -> None:
        record.info["file"] = file()

    def taken(_: object, record: Any, __: object) -> None:
        if (found := file()) and found != record.info["file"]:
            raise DisconnectionError(f"{path} was replaced")

    event.listen(engine, "connect", connected)
    event.listen(engine, "checkout", taken)


def present(path: Path, *, to_make: bool = False) -> bool:
    """Whether there is a file at ``path`` that may be a database.

    Raises:
        BadInput: there is not even its folder, though somebody named it and it is not ``to_make``: a mistake, which
            would look like an empty database.
        DatabaseError: what is there is no SQLite file, or cannot be looked at.
    """
    try:
        if path.is_dir():
            raise DatabaseError(f"database {path} is a directory; it would be a file in it")
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        if not (to_make or path.parent.is_dir() or default_file(path)):
            raise BadInput(f"database {path}: there is no folder {path.parent}", field="db") from None
        return False
    except OSError as error:
        raise DatabaseError(f"database {path} cannot be opened: {error.strerror}") from error
    if header and header != _HEADER:
        raise DatabaseError(f"database {path} is not an SQLite file; choose another with --db or TUNEDEX_DB")
    return True


def absent_file(url: str | None = None) -> Path | None:
    """The file that somebody names as a database and that is not there; None where it is, and for the user's own,
    which comes into being with the first sweep.

    Raises:
        BadInput: ``url`` names no database that Tunedex can use.
        DatabaseError: what is there is no database, or cannot be looked at.
    """
    path = embedded_path(url)
    return path if path and not default_file(path) and not present(path) else None


def _open_file(path: Path, for_reading: bool) -> sqlite3.Connection:
    """One connection. Transactions are begun by `_begin`, never by the driver."""
    address = f"file:{quote(str(path))}"
    if for_reading:
        # SQLite reads a WAL database through its -shm file; where that neither exists nor can be made, the file
        # cannot be written by anybody here either, and may be taken as it is.
        shared = path.with_name(f"{path.name}-shm").exists() or os.access(path.parent, os.W_OK)
        address += "?mode=ro" if shared else "?mode=ro&immutable=1"
    connection = sqlite3.connect(
        address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # With WAL, NORMAL syncs at checkpoints only. A commit is in the system's page cache when it returns, so the end
        # of the process, kill -9 too, loses nothing; a power cut may lose the last commits, never damages the file.
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _text(stored: bytes) -> str | Unreadable:
    """A text as it is stored. SQLite takes any bytes for one, and one that is not UTF-8 ends a query otherwise."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return Unreadable("is not UTF-8")


def use_wal(path: Path) -> None:
    """Put an SQLite file into WAL mode, which it keeps, so that readers and the writer do not wait for each other.

    Two processes that make one file at once may find it locked whatever the timeout, so this tries again.

    Raises:
        DatabaseError: the file is no database, or stays locked.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            try:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    connection.execute("PRAGMA journal_mode = WAL")
                return
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise DatabaseError(f"database {path} cannot be opened: {one_line(error)}") from error
            time.sleep(0.02)
        except sqlite3.Error as error:
            raise DatabaseError(f"database {path} cannot be opened: {one_line(error)}") from error


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _leave_to_parent() -> None:
    """Give a forked child connections of its own; one that two processes use at once breaks for both."""
    for engine in list(_engines):
        _inherited.append(engine.pool)
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
