"""How Alembic runs our migrations: on the caller's connection, else on the database that TUNEDEX_DB names."""

from alembic import context
from sqlalchemy import Connection

from tunedex.db.engine import WRITES, opened
from tunedex.db.migrate import VERSION_TABLE
from tunedex.db.models import Base
from tunedex.db.urls import parse


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Leave every table alone that is not ours: the database may be shared with Optuna or the user's own tables."""
    return kind != "table" or name in Base.metadata.tables


def migrate(connection: Connection) -> None:
    """Run the migrations in the connection's transaction; SQLite too undoes a schema change with the rest."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=include_name,
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    with opened(parse(), create=True) as engine:
        with engine.connect().execution_options(**{WRITES: True}) as own, own.begin():
            migrate(own)
        engine.dispose()
