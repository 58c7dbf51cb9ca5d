"""Transactions, and trying one again while its database is away: restarted, failed over, or locked by somebody for
longer than a connection waits."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from tunedex.core.display import one_line

_log = logging.getLogger(__name__)

#: The first pause before another attempt, which each doubles, and the longest.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

_Result = TypeVar("_Result")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@dataclass(frozen=True)
class Patience:
    """For how long a transaction is tried again. ``wait`` waits so many seconds, and is true where waiting is to end
    at once."""

    seconds: float = 0.0
    wait: Callable[[float], bool] = _sleep


@dataclass(frozen=True)
class _Doubt(Generic[_Result]):
    """A transaction whose commit was not acknowledged: PostgreSQL's number of it, and what it gave."""

    number: int
    result: _Result


def transact(engine: Engine, work: Callable[[Session], _Result], patience: Patience, *, commits: bool) -> _Result:
    """The result of ``work`` in a transaction, which takes place once, however often it is tried.

    A connection that is lost while a commit is under way leaves open whether it took place. PostgreSQL is asked for
    that before anything is written again; SQLite has no such connection.

    Raises:
        DBAPIError: the database refuses, or is away for longer than is waited.
    """
    end: float | None = None
    pause_s = _FIRST_PAUSE_S
    doubt: _Doubt[_Result] | None = None
    while True:
        try:
            if doubt is not None:
                if (status := _status(engine, doubt.number)) == "committed":
                    return doubt.result
                # One that is still in progress, in a session that has not seen the connection's end yet, is waited for.
                doubt = None if status != "in progress" else doubt
            if doubt is None:
                with Session(engine) as session:
                    result = work(session)
                    if commits:
                        doubt = _doubt(session, result) if patience.seconds else None
                        session.commit()
                return result
        except DBAPIError as error:
            if not _away(error):
                raise
            failure = error
        now = time.monotonic()
        if end is None:
            end = now + patience.seconds
            if patience.seconds:
                words = one_line(failure.orig)
                _log.warning("the database is away, and tried again for %.0f s: %s", patience.seconds, words)
        if now >= end or patience.wait(min(pause_s, end - now)):
            raise failure
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _away(error: DBAPIError) -> bool:
    """Whether the database may do later what it did not do now."""
    if isinstance(error.orig, sqlite3.Error):
        # The low byte is the kind of an extended code. A Python wrapper's own errors have none.
        kind = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        return kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return error.connection_invalidated or isinstance(error, OperationalError)


def _doubt(session: Session, result: _Result) -> _Doubt[_Result] | None:
    """What there would be to ask if the commit to come were not acknowledged; None where nothing was written."""
    if session.get_bind().dialect.name != "postgresql":
        return None
    number = session.execute(text("SELECT txid_current_if_assigned()")).scalar_one()
    return None if number is None else _Doubt(int(number), result)


def _status(engine: Engine, number: int) -> str | None:
    """``committed``, ``aborted`` or ``in progress``."""
    with engine.connect() as connection:
        found: str | None = connection.execute(text("SELECT txid_status(:number)"), {"number": number}).scalar_one()
    return found
