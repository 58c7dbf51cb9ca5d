"""Revisions say what the kernels were when they were made; a kernel's row is kept by the key of its signature.

What is known of an older revision is when kernels were registered, and the versions that its rows name.
"""

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from alembic import op

from tunedex.core.canonical import key_of

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)

KERNELS, REVISIONS, BOTH = "tunedex_kernels", "tunedex_revisions", "tunedex_revision_kernels"


def kernel_columns() -> list[sa.Column[Any]]:
    texts = [sa.Column(name, sa.Text(), nullable=False) for name in ("name", "version", "signature")]
    return [*texts, sa.Column("registered_at", TIME, nullable=False)]


def upgrade() -> None:
    kernels = [dict(row._mapping) for row in _read(KERNELS, *kernel_columns())]
    for kernel in kernels:
        kernel["key"] = key_of(json.loads(kernel["signature"]))
    key: sa.Column[Any] = sa.Column("key", sa.Text(), nullable=False)
    _make_kernels([key, *kernel_columns()], ["key"], kernels)
    made = op.create_table(
        BOTH,
        sa.Column("revision", GROWING_ID, autoincrement=False, nullable=False),
        sa.Column("kernel_key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", "kernel_key", name=op.f(f"pk_{BOTH}")),
        sa.ForeignKeyConstraint(["revision"], [f"{REVISIONS}.number"], name=op.f(f"fk_{BOTH}_revision")),
        sa.ForeignKeyConstraint(["kernel_key"], [f"{KERNELS}.key"], name=op.f(f"fk_{BOTH}_kernel_key")),
    )
    op.bulk_insert(made, list(_known(kernels)))


def downgrade() -> None:
    op.drop_table(BOTH)
    kernels = [dict(row._mapping) for row in _read(KERNELS, *kernel_columns())]
    newest = {(k["name"], k["version"]): k for k in sorted(kernels, key=lambda kernel: kernel["registered_at"])}
    _make_kernels(kernel_columns(), ["name", "version"], newest.values())


def _known(kernels: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The kernels of each revision: of each name what was registered last before it, else the version that the rows
    published in it were measured with."""
    by_age = sorted(kernels, key=lambda kernel: kernel["registered_at"])
    keys = {(kernel["name"], kernel["version"]): kernel["key"] for kernel in by_age}
    measured = op.get_bind().execute(
        sa.text(
            "SELECT DISTINCT b.since, p.kernel, b.kernel_version FROM tunedex_bests b "
            "JOIN tunedex_problems p ON p.key = b.problem_key ORDER BY b.since, p.kernel, b.kernel_version"
        )
    )
    named: dict[int, dict[str, str]] = {}
    for since, kernel, version in measured:
        if (kernel, version) in keys:
            named.setdefault(since, {})[kernel] = keys[kernel, version]
    for number, created_at in _read(REVISIONS, sa.Column("number", GROWING_ID), sa.Column("created_at", TIME)):
        before = {kernel["name"]: kernel["key"] for kernel in by_age if kernel["registered_at"] <= created_at}
        for key in {**named.get(number, {}), **before}.values():
            yield {"revision": number, "kernel_key": key}


def _read(table: str, *columns: sa.Column[Any]) -> list[Any]:
    return list(
        op.get_bind().execute(sa.select(*(sa.column(c.name, c.type) for c in columns)).select_from(sa.table(table)))
    )


def _make_kernels(columns: list[sa.Column[Any]], key: list[str], rows: Iterable[dict[str, Any]]) -> None:
    """Put a table of ``columns`` with ``rows`` in the place of the one there is, to which no other refers."""
    op.drop_table(KERNELS)
    made = op.create_table(KERNELS, *columns, sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{KERNELS}")))
    op.bulk_insert(made, [{column.name: row[column.name] for column in columns} for row in rows])
