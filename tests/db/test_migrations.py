"""The schema's version on both kinds of database, beside other programs', and from an installed wheel."""

from __future__ import annotations

import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from db_examples import DEVICE, fill, problem, row, trial
from optuna.storages import RDBStorage
from sqlalchemy import CheckConstraint, Connection, Engine, create_engine, inspect, text

from tunedex.core.errors import DatabaseError
from tunedex.db import database_url, migrate, open_store
from tunedex.db.engine import opened
from tunedex.db.models import Base
from tunedex.db.store import check_database, upgrade_database
from tunedex.db.urls import parse

OURS = {*Base.metadata.tables, migrate.VERSION_TABLE}


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    with opened(parse(empty_url), create=True) as made:
        yield made
    made.dispose()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or name in Base.metadata.tables


def differences(connection: Connection) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True, "include_name": ours}
    context = MigrationContext.configure(connection, opts={**options, "target_metadata": Base.metadata})
    return list(compare_metadata(context, Base.metadata))


def test_the_migrations_end_at_the_version_of_this_code() -> None:
    assert ScriptDirectory.from_config(migrate.config()).get_heads() == [migrate.HEAD]


def test_the_migrations_make_the_tables_of_the_models(url: str, engine: Engine) -> None:
    assert tables(engine) == OURS
    with engine.connect() as connection:
        assert differences(connection) == []
        for table in Base.metadata.sorted_tables:
            found = inspect(connection)
            assert {check["name"] for check in found.get_check_constraints(table.name)} == {
                constraint.name for constraint in table.constraints if isinstance(constraint, CheckConstraint)
            }
            assert found.get_pk_constraint(table.name)["name"] == f"pk_{table.name}"
            assert found.get_pk_constraint(table.name)["constrained_columns"] == list(table.primary_key.columns.keys())


def test_a_missing_table_is_noticed(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE tunedex_misses"))
        assert differences(connection) != []


def test_upgrading_twice_does_nothing_more(empty_url: str) -> None:
    assert upgrade_database(empty_url)[1]
    assert not upgrade_database(empty_url)[1]
    check_database(empty_url)


def test_a_filled_database_goes_down_and_up_again(url: str, engine: Engine) -> None:
    with open_store(url) as store:
        fill(store)
        store.add_trial(trial())
        store.publish(DEVICE.key, {problem(): [row()]})
        store.add_misses(DEVICE.key, {problem(): 1})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE recipes (name TEXT)"))
        connection.execute(text("INSERT INTO recipes VALUES ('bread')"))
    migrate.downgrade(engine, "base")
    assert tables(engine) == {"recipes", migrate.VERSION_TABLE}
    upgrade_database(url)
    with open_store(url) as store:
        assert set(store.counts().values()) == {0}
        fill(store)
        assert store.add_trial(trial()) == 1
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM recipes")).scalars().all() == ["bread"]


def test_a_failed_upgrade_leaves_nothing_behind(
    empty_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(op, "create_index", broken)
    with pytest.raises(DatabaseError, match="the disk is full"):
        upgrade_database(empty_url)
    monkeypatch.undo()
    assert tables(engine) == set()
    upgrade_database(empty_url)
    check_database(empty_url)


def test_several_who_upgrade_at_once_agree(empty_url: str) -> None:
    ready = threading.Barrier(3)

    def upgrade(_: int) -> bool:
        ready.wait()
        return upgrade_database(empty_url)[1]

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(upgrade, range(3))) == [False, False, True]


def test_threads_upgrade_databases_of_their_own(tmp_path: Path) -> None:
    ready = threading.Barrier(4)

    def upgrade(number: int) -> bool:
        ready.wait()
        return upgrade_database(str(tmp_path / f"{number}.db"))[1]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(upgrade, range(4))) == [True] * 4
    for number in range(4):
        check_database(str(tmp_path / f"{number}.db"))


def test_a_newer_database_is_refused(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'"))
    for refuse in (open_store, upgrade_database, check_database):
        with pytest.raises(DatabaseError, match="newer Tunedex") as caught:
            refuse(url)
        assert "\n" not in str(caught.value)


def test_opening_a_shared_database_that_is_behind_refuses(postgresql_url: str) -> None:
    with pytest.raises(DatabaseError, match="run `tuner db upgrade`"):
        open_store(postgresql_url)
    engine = create_engine(database_url(postgresql_url))
    assert tables(engine) == set()
    engine.dispose()
    upgrade_database(postgresql_url)
    with open_store(postgresql_url) as store:
        store.check()
        engine = create_engine(database_url(postgresql_url))
        migrate.downgrade(engine, "base")
        engine.dispose()
        with pytest.raises(DatabaseError, match="run `tuner db upgrade`"):
            store.check()


def test_opening_an_embedded_database_that_is_behind_upgrades_it(tmp_path: Path) -> None:
    url = str(tmp_path / "t.db")
    with pytest.raises(DatabaseError, match="there is no database"):
        check_database(url)
    (tmp_path / "t.db").touch()
    with pytest.raises(DatabaseError, match="has no tables of Tunedex; run `tuner db upgrade`"):
        check_database(url)
    open_store(url).close()
    check_database(url)


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/nothing", "postgresql:///t?host=/nonexistent"])
def test_a_server_that_is_not_there_gives_one_line(url: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)
    assert "database postgresql+psycopg:" in str(caught.value)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Optuna without its log lines."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def optimise(url: str) -> int:
    """Use an Optuna study in the database for one more trial; gives how many it has."""
    storage = RDBStorage(database_url(url))
    study = optuna.create_study(storage=storage, study_name="bread", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    count = len(study.trials)
    storage.remove_session()
    storage.engine.dispose()
    return count


@pytest.mark.parametrize("optuna_first", [True, False])
def test_optuna_and_tunedex_share_a_database(empty_url: str, engine: Engine, quiet: None, optuna_first: bool) -> None:
    if optuna_first:
        optimise(empty_url)
    assert upgrade_database(empty_url)[1]
    before = 1 if optuna_first else 0
    assert optimise(empty_url) == before + 1
    assert not upgrade_database(empty_url)[1]
    with open_store(empty_url) as store:
        fill(store)
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {migrate.VERSION_TABLE}")).scalar() == migrate.HEAD
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() != migrate.HEAD
        assert differences(connection) == []
    migrate.downgrade(engine, "base")
    assert optimise(empty_url) == before + 2
    assert upgrade_database(empty_url)[1]


USE = """
import sys
import tunedex
from tunedex.db import migrate, open_store
open_store(sys.argv[1]).check()
sys.stdout.write(f"{tunedex.__file__}\\n{migrate.scripts()}")
"""


def used(*, folder: Path | None, database: Path) -> list[Path]:
    """Where a process that imports Tunedex from ``folder``, else as installed here, has it and its migrations."""
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\n" if folder else ""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", start + USE, str(database)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=database.parent,
    )
    assert result.returncode == 0, result.stderr
    return [Path(line) for line in result.stdout.splitlines()]


def test_the_migrations_are_found_in_a_checkout(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    package, scripts = used(folder=root, database=tmp_path / "t.db")
    assert package == root / "tunedex" / "__init__.py"
    assert scripts == root / "alembic"
    assert not (root / "tunedex" / "db" / "migrations").exists()


def test_the_migrations_are_found_in_an_installed_wheel(tmp_path: Path, wheel: Path) -> None:
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    package, scripts = used(folder=target, database=tmp_path / "t.db")
    assert package == target / "tunedex" / "__init__.py"
    assert scripts == target / "tunedex" / "db" / "migrations"
