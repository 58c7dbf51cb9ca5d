"""Databases that hold what Tunedex does not write: what can be read is read, and `tuner db check` names the rest."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from db_examples import DEVICE, ENVIRONMENT, VERSION, fill, measurement, problem, row, trial
from sqlalchemy import create_engine, text

from tunedex.cli.app import run
from tunedex.core.channel import Channel
from tunedex.core.errors import DamagedDatabase, DatabaseError, UnknownSweep
from tunedex.core.measurement import Failure, FailureKind
from tunedex.core.snapshot import Match
from tunedex.db import Store, database_url, migrate, open_store
from tunedex.db.checking import check_database
from tunedex.db.models import Base
from tunedex.db.records import Ceilings, Stage, Sweep
from tunedex.db.store import upgrade_database

Capture = pytest.CaptureFixture[str]


def fill_every_table(store: Store) -> None:
    fill(store)
    sweep = store.start_sweep(Sweep(DEVICE.key, ENVIRONMENT.key, {"preset": "quick"}))
    store.add_trials([trial(sweep=sweep), trial(32, Failure(FailureKind.CRASH, "it fell"), stage=Stage.FINAL)])
    for block in (128, 64):
        store.publish(DEVICE.key, {problem(): [row(block), row(256, rank=1)], problem(8): [row()]}, sweep=sweep)
    store.promote()
    store.add_misses(DEVICE.key, {problem(7): 2})
    store.put_ceilings(DEVICE.key, ENVIRONMENT.key, Ceilings(1e12, {"bfloat16": 1e15}, 2e12))


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedded database with a row in every table, which no test changes."""
    path = tmp_path_factory.mktemp("sound") / "tunedex.db"
    with open_store(str(path)) as store:
        fill_every_table(store)
        assert all(store.counts().values())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "tunedex.db"))


@pytest.fixture
def damage(path: Path) -> Callable[[str], None]:
    """Runs a statement on the database, as anybody may who can write the file."""

    def execute(statement: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return execute


def read_everything(store: Store) -> None:
    store.devices()
    store.device(DEVICE.key)
    store.environments()
    store.kernels()
    store.trials_of(problem().key, device=DEVICE.key, environment=ENVIRONMENT.key, kernel_version=VERSION)
    store.loosest_bound(DEVICE.key, problem().key)
    store.ceilings(DEVICE.key, ENVIRONMENT.key)
    store.last_tried(DEVICE.key)
    store.tried("softmax", VERSION)
    store.disturbed(DEVICE.key, ENVIRONMENT.key)
    store.sweep(1)
    with suppress(UnknownSweep):
        store.curves(1)
    for limit in (1, 100):
        store.list_trials(limit=limit)
        store.list_sweeps(limit=limit)
        store.list_misses(limit=limit)
        store.list_bests(limit=limit)
    for channel in Channel:
        store.snapshot(DEVICE.key, channel=channel).to_dict()
        store.stamp(DEVICE.key, channel=channel)
        store.rows_of(DEVICE.key, problem().key, channel)
    store.snapshot(DEVICE.key, revision=1)


#: Bytes that are no text, a text that is not UTF-8, one that is no JSON, JSON of another shape, a number that is none.
VALUES = ("X'ff'", "CAST(X'ff' AS TEXT)", "'{'", "'{\"kernel\":[1]}'", "9e999")


@pytest.mark.parametrize("table", sorted(Base.metadata.tables))
def test_no_value_of_any_column_ends_the_reading_of_the_others(
    path: Path, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    """SQLite puts any value into any column."""
    caplog.set_level(logging.CRITICAL)
    with open_store(str(path)) as store, closing(sqlite3.connect(path)) as connection:
        for column in Base.metadata.tables[table].columns:
            before = connection.execute(f"SELECT {column.name}, rowid FROM {table}").fetchall()
            for value in VALUES:
                try:
                    with connection:
                        connection.execute(f"UPDATE {table} SET {column.name} = {value}")
                except sqlite3.IntegrityError:  # a key that several rows would have, or a number that is none
                    continue
                try:
                    read_everything(store)
                    assert value != VALUES[0] or check_database(str(path)).faults
                except Exception as error:
                    raise AssertionError(f"{column} = {value}") from error
                with connection:
                    connection.executemany(f"UPDATE {table} SET {column.name} = ? WHERE rowid = ?", before)


@pytest.mark.parametrize(
    "change", ["copy_bytes_s = 1e300", "cache_bytes_s = -1.0", "flops_s = '{\"tf32\":1e300}'", "copy_bytes_s = 0"]
)
def test_a_rate_that_no_device_has_is_told_and_measured_anew(
    path: Path, damage: Callable[[str], None], change: str
) -> None:
    damage(f"UPDATE tunedex_ceilings SET {change}")
    (fault,) = check_database(str(path)).faults
    assert "is not above 0 and below 1e+18 a second" in fault
    with open_store(str(path)) as store:
        assert store.ceilings(DEVICE.key, ENVIRONMENT.key) is None
        store.put_ceilings(DEVICE.key, ENVIRONMENT.key, Ceilings(1e12))
        assert store.ceilings(DEVICE.key, ENVIRONMENT.key) == Ceilings(1e12)
    assert check_database(str(path)).faults == ()


def test_a_sound_database_has_no_fault(store: Store, url: str, capsys: Capture) -> None:
    fill_every_table(store)
    assert check_database(url).faults == ()
    assert run(["db", "check", "--json", "--db", url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["faults"], document["schema"]) == ([], migrate.HEAD)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("config = '{'", "config is not JSON"),
        ("config = '[1]'", "config is no JSON object"),
        ("config = '{}'", "a config has no implementation"),
        ('config = \'{"implementation":"triton","block":null}\'', "block of a config is a NoneType"),
        ('config = \'{"implementation":"\\ud800"}\'', "config is not JSON"),
        ("time_us = 'abc'", "time_us is 'abc'"),
        ("time_us = -1", "time_us -1.0 is not a time above 0"),
        ("default_us = 0", "default_us 0.0 is not a time above 0"),
        ("lossless = 'maybe'", "lossless is neither true nor false"),
        ("policy = 'hot'", "'hot' is not a valid Policy"),
        ("samples = NULL", "samples is NULL"),
        ("measured_at = 'yesterday'", "measured_at is no time"),
        ("environment_key = X'ff'", "environment_key is b'\\xff'"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_left_out(
    path: Path,
    damage: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
    capsys: Capture,
    change: str,
    words: str,
) -> None:
    damage(f"UPDATE tunedex_bests SET {change} WHERE rank = 0 AND until IS NULL AND problem_key = '{problem().key}'")
    with open_store(str(path)) as store:
        snapshot = store.snapshot(DEVICE.key)
        answer = snapshot.answer(problem())
        assert (answer.match, str(answer.config)) == (Match.EXACT, "triton block=256 warps=4")
        assert snapshot.answer(problem(8)).match is Match.EXACT
        (message,) = caplog.messages
        assert message.startswith("left out, because it cannot be read: tunedex_bests id ")
        assert words in message

        assert run(["db", "check", "--db", str(path)]) == 1
        said = capsys.readouterr().err.splitlines()
        assert said[0].startswith("cannot be read: tunedex_bests id ")
        assert words in said[0]
        assert "has 1 fault: restore a backup" in said[1]

        store.publish(DEVICE.key, {problem(): [row(64), row(256, rank=1)]})
        assert str(store.snapshot(DEVICE.key).answer(problem()).config) == "triton block=64 warps=4"


def test_a_device_whose_description_is_lost_is_what_its_key_says(path: Path, damage: Callable[[str], None]) -> None:
    damage("UPDATE tunedex_devices SET description = '{'")
    with open_store(str(path)) as store:
        assert DEVICE in [summary.device for summary in store.devices()]
        assert store.device(DEVICE.key) == DEVICE
        assert store.snapshot(DEVICE.key).answer(problem()).match is Match.EXACT


@pytest.fixture
def edited(url: str) -> Iterator[Callable[[str], None]]:
    engine = create_engine(database_url(url))

    def execute(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    yield execute
    engine.dispose()


def test_a_missing_table_and_a_missing_column_are_found(
    url: str, store: Store, edited: Callable[[str], None], capsys: Capture
) -> None:
    edited("DROP TABLE tunedex_trials")
    edited("ALTER TABLE tunedex_misses DROP COLUMN count")
    assert run(["db", "check", "--json", "--db", url]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == [
        "there is no table tunedex_trials",
        "tunedex_misses has no column count",
    ]
    with pytest.raises(DatabaseError, match="`tuner db check` says what else is missing"):
        store.devices()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"DELETE FROM {migrate.VERSION_TABLE}", "no version in tunedex_alembic_version"),
        (f"DROP TABLE {migrate.VERSION_TABLE}", "no version in tunedex_alembic_version"),
        (f"INSERT INTO {migrate.VERSION_TABLE} VALUES ('0001')", f"2 versions (0001, {migrate.HEAD})"),
    ],
)
def test_a_version_that_is_none_is_named_with_its_remedy(
    url: str, store: Store, edited: Callable[[str], None], capsys: Capture, statement: str, words: str
) -> None:
    edited(statement)
    with pytest.raises(DamagedDatabase) as caught:
        store.check()
    assert words in str(caught.value)
    assert f"make that one row {migrate.HEAD}" in str(caught.value)
    for refuse in (open_store, upgrade_database):
        with pytest.raises(DamagedDatabase):
            refuse(url)
    assert run(["db", "stats", "--db", url]) == 2
    assert capsys.readouterr().err == f"tuner: {caught.value}\n"
    assert run(["db", "check", "--json", "--db", url]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == [str(caught.value)]


def test_rows_that_refer_to_nothing_are_found(path: Path, damage: Callable[[str], None]) -> None:
    damage(f"DELETE FROM tunedex_problems WHERE key = '{problem().key}'")
    faults = check_database(str(path)).faults
    assert any("tunedex_bests row 1 refers to a row that tunedex_problems does not have" in fault for fault in faults)


def test_many_faults_are_counted(path: Path, damage: Callable[[str], None]) -> None:
    with open_store(str(path)) as store:
        store.add_trials([trial(block, measurement()) for block in range(30)])
    damage("UPDATE tunedex_trials SET config = ''")
    faults = check_database(str(path)).faults
    assert len(faults) == 21
    assert faults[-1] == "and 12 more of this kind"


def test_every_table_is_checked() -> None:
    from tunedex.db import checking

    assert {table.__tablename__ for table in checking._READ} == set(Base.metadata.tables)
