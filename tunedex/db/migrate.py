"""The schema's version: what it is, whether it fits this code, and how it is brought up to date.

The version table has its own name, so that another program's Alembic in the same database (Optuna's) and ours do
not read each other's version.
"""

from __future__ import annotations

import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, inspect, text

from tunedex.core.errors import CannotRun, DamagedDatabase, DatabaseError
from tunedex.db.engine import WRITES, embedded, name_of, use_wal
from tunedex.db.models import Base

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "tunedex_alembic_version"

#: The newest migration. Written here too, so that opening a database that is up to date loads no migration code.
HEAD = "0003"

# An arbitrary number that all of Tunedex uses to let one process at a time migrate a PostgreSQL database.
_MIGRATION_LOCK = 0x74756E65646578


# Alembic's `context` and `op` are of the process, so one thread of it migrates at a time.
_migrating = threading.Lock()


def scripts() -> Path:
    """The folder of the migrations: inside the package where it is installed, else beside it in a checkout.

    Raises:
        CannotRun: neither is there.
    """
    package = Path(str(files("tunedex")))
    for folder in (package / "db" / "migrations", package.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise CannotRun(f"the migrations are neither in {package / 'db' / 'migrations'} nor beside the package")


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration for our scripts, on ``connection`` where one is given."""
    from alembic.config import Config

    # What Alembic has to say is progress; standard output is for results.
    made = Config(stdout=sys.stderr)
    made.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    made.attributes["connection"] = connection
    return made


def version(connection: Connection, url: URL) -> str | None:
    """The version that the database is at; None where it has none of our tables.

    Raises:
        DamagedDatabase: it has, and does not say which one version they are of.
    """
    tables = set(inspect(connection).get_table_names())
    found: list[str] = []
    if VERSION_TABLE in tables:
        found = [str(row[0]) for row in connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))]
    if len(found) == 1:
        return found[0]
    if not found and not tables & set(Base.metadata.tables):
        return None
    said = f"{len(found)} versions ({', '.join(sorted(found))})" if found else "no version"
    raise DamagedDatabase(
        f"database {name_of(url)} has tables of Tunedex, and {said} in {VERSION_TABLE}, where one belongs: "
        f"restore a backup, or, where `tuner db check` finds no other fault, make that one row {HEAD}"
    )


def require_head(engine: Engine, url: URL) -> None:
    """Check that the database is at the version of this code.

    Raises:
        DatabaseError: it is behind, or ahead, or does not say.
    """
    with engine.connect() as connection:
        found = version(connection, url)
    if found == HEAD:
        return
    _refuse_newer(url, found)
    state = "has no tables of Tunedex" if found is None else f"is at version {found}, and this code needs {HEAD}"
    raise DatabaseError(f"database {name_of(url)} {state}; run `tuner db upgrade`")


def upgrade(engine: Engine, url: URL) -> bool:
    """Bring the database to the version of this code; safe when several processes do so at once.

    Returns:
        Whether there was anything to do.

    Raises:
        DatabaseError: it is ahead of this code, or does not say.
    """
    with engine.connect() as connection:
        if version(connection, url) == HEAD:
            return False
    from alembic import command

    if embedded(url):
        use_wal(Path(url.database or ""))
    with _migrating, engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        if not embedded(url):
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _MIGRATION_LOCK})
        found = version(connection, url)
        if found == HEAD:
            return False
        _refuse_newer(url, found)
        command.upgrade(config(connection), "head")
    return True


def downgrade(engine: Engine, target: str) -> None:
    """Take the database back to version ``target``; ``base`` drops every table of ours with what it holds."""
    from alembic import command

    with _migrating, engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        command.downgrade(config(connection), target)


def _refuse_newer(url: URL, found: str | None) -> None:
    """Raise where this code does not know the version: a newer Tunedex wrote it."""
    if found is None:
        return
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}
    if found not in known:
        raise DatabaseError(
            f"database {name_of(url)} is at version {found}, which this code does not know; "
            "it was made by a newer Tunedex: upgrade this one"
        )
