"""Trials say whether other work ran on their device; ceilings hold the rate of the L2 cache."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tunedex_trials", sa.Column("contended", sa.Boolean(), nullable=True))
    op.add_column("tunedex_ceilings", sa.Column("cache_bytes_s", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("tunedex_ceilings", "cache_bytes_s")
    op.drop_column("tunedex_trials", "contended")
