"""A database that is away for a while: what is asked of it meanwhile is tried again, and takes place once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from db_examples import DEVICE, ENVIRONMENT, fill, problem, row, trial
from sqlalchemy import make_url

from tunedex.core.errors import DatabaseError
from tunedex.db import Patience, Store, engine, open_store
from tunedex.db.records import Sweep
from tunedex.db.store import upgrade_database


class Waiting:
    """Waits in no time, and does something when that has been tried ``often`` enough."""

    def __init__(self, then: Callable[[], object], often: int = 3) -> None:
        self._then, self._often = then, often
        self.pauses_s: list[float] = []

    def __call__(self, seconds: float) -> bool:
        self.pauses_s.append(seconds)
        if len(self.pauses_s) == self._often:
            self._then()
        return False


def never(seconds: float) -> bool:
    raise AssertionError("waited")


@pytest.fixture
def shared(postgresql_url: str) -> Iterator[Store]:
    upgrade_database(postgresql_url)
    with open_store(postgresql_url) as store:
        fill(store)
        yield store


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, sqlite3.Connection]]:
    """A file that another program writes for longer than a connection waits, with that program's connection."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.02)
    with open_store(str(tmp_path / "t.db")) as store:
        fill(store)
        holder = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        yield store, holder
        holder.close()


def goes_away(server: str, name: str) -> None:
    """End every session of the database, and let nobody in."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


def comes_back(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_a_server_that_restarts_is_waited_for(postgresql: str, postgresql_url: str, shared: Store) -> None:
    name = make_url(postgresql_url).database or ""
    waiting = Waiting(lambda: comes_back(postgresql, name))
    patient = shared.patient(Patience(600, waiting))
    goes_away(postgresql, name)
    with pytest.raises(DatabaseError):
        shared.add_trial(trial())
    assert patient.add_trial(trial()) == 1
    assert waiting.pauses_s == sorted(waiting.pauses_s)
    assert len(waiting.pauses_s) == 3
    again = Waiting(lambda: comes_back(postgresql, name))
    goes_away(postgresql, name)
    assert shared.patient(Patience(600, again)).counts()["trials"] == 1


@pytest.mark.parametrize("took_place", [True, False])
def test_a_commit_whose_end_nobody_heard_takes_place_once(
    took_place: bool, shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = shared._engine.dialect
    commit = dialect.do_commit
    lost = 0

    def do_commit(connection: Any) -> None:
        nonlocal lost
        if lost:
            commit(connection)
            lost = 0
            return
        lost = 1
        if took_place:
            commit(connection)
        else:
            connection.rollback()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    patient = shared.patient(Patience(600, Waiting(lambda: None)))
    writes = (
        lambda: patient.start_sweep(Sweep(DEVICE.key, ENVIRONMENT.key, {})),
        lambda: patient.add_trials([trial(), trial()]),
        lambda: patient.publish(DEVICE.key, {problem(): [row()]}),
    )
    monkeypatch.setattr(dialect, "do_commit", do_commit)
    given = []
    for write in writes:
        lost = 0
        given.append(write())
    monkeypatch.setattr(dialect, "do_commit", commit)
    counts = shared.counts()
    assert (counts["sweeps"], counts["trials"], counts["revisions"]) == (1, 2, 1)
    assert [s.id for s in shared.list_sweeps().items] == [given[0]]
    assert sorted(t.id or 0 for t in shared.list_trials().items) == given[1]
    assert shared.current_revision(DEVICE.key, "candidate") == given[2]


def test_a_file_that_stays_locked_is_waited_for(locked: tuple[Store, sqlite3.Connection]) -> None:
    store, holder = locked
    with pytest.raises(DatabaseError, match="locked"):
        store.add_trial(trial())
    waiting = Waiting(lambda: holder.execute("COMMIT"))
    assert store.patient(Patience(600, waiting)).add_trial(trial()) == 1
    assert len(waiting.pauses_s) == 3
    assert store.counts()["trials"] == 1


@pytest.mark.parametrize("patience", [Patience(600, lambda seconds: True), Patience(0.2)], ids=["ended", "over"])
def test_waiting_has_an_end(patience: Patience, locked: tuple[Store, sqlite3.Connection]) -> None:
    store, _ = locked
    with pytest.raises(DatabaseError, match="locked"):
        store.patient(patience).add_trial(trial())


def test_what_is_refused_is_not_tried_again(store: Store) -> None:
    patient = store.patient(Patience(600, never))
    with pytest.raises(DatabaseError, match="come before what refers to them"):
        patient.add_trial(trial(sweep=17))
