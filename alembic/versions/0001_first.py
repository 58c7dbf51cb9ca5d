"""The first tables.

The reason of each index stands beside the models (`tunedex.db.models`), which a test compares with these.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def text(name: str, *, null: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=null)


def whole(name: str, *, null: bool = False) -> sa.Column:
    return sa.Column(name, GROWING_ID, nullable=null)


def real(name: str, *, null: bool = False) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=null)


def time(name: str, *, null: bool = False) -> sa.Column:
    return sa.Column(name, TIME, nullable=null)


def measured() -> list[sa.Column]:
    return [
        real("time_us", null=True),
        real("p20_us", null=True),
        real("p80_us", null=True),
        whole("samples", null=True),
        text("policy", null=True),
        real("error", null=True),
        sa.Column("lossless", sa.Boolean(), nullable=True),
        text("output_hash", null=True),
        whole("peak_memory_bytes", null=True),
        whole("shared_memory_bytes", null=True),
        whole("registers", null=True),
        whole("spill_bytes", null=True),
        real("energy_j", null=True),
        real("warm_us", null=True),
    ]


def refers(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=op.f(f"fk_{table}_{column}"))


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=op.f(f"pk_{table}"))


def index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def upgrade() -> None:
    op.create_table(
        "tunedex_devices",
        text("key"),
        text("kind"),
        text("name"),
        text("family"),
        text("description"),
        time("registered_at"),
        time("seen_at"),
        key("tunedex_devices", "key"),
    )
    op.create_table(
        "tunedex_environments",
        text("key"),
        text("driver"),
        text("cuda"),
        text("torch"),
        text("triton"),
        text("numba"),
        text("python"),
        time("registered_at"),
        key("tunedex_environments", "key"),
    )
    op.create_table(
        "tunedex_kernels",
        text("name"),
        text("version"),
        text("signature"),
        time("registered_at"),
        key("tunedex_kernels", "name", "version"),
    )
    op.create_table(
        "tunedex_problems",
        text("key"),
        text("kernel"),
        text("dims"),
        text("attributes"),
        text("dtypes"),
        text("layout"),
        whole("alignment"),
        time("registered_at"),
        key("tunedex_problems", "key"),
    )
    index("tunedex_problems", "kernel")
    op.create_table(
        "tunedex_sweeps",
        whole("id"),
        text("device_key"),
        text("environment_key"),
        text("options"),
        text("objective"),
        real("max_error", null=True),
        real("max_latency_us", null=True),
        whole("max_memory", null=True),
        text("policy"),
        text("status"),
        time("started_at"),
        time("ended_at", null=True),
        key("tunedex_sweeps", "id"),
        refers("tunedex_sweeps", "device_key", "tunedex_devices.key"),
        refers("tunedex_sweeps", "environment_key", "tunedex_environments.key"),
    )
    index("tunedex_sweeps", "device_key", "id")
    op.create_table(
        "tunedex_trials",
        *measured(),
        whole("id"),
        whole("sweep_id", null=True),
        text("device_key"),
        text("environment_key"),
        text("problem_key"),
        text("kernel_version"),
        text("config_key"),
        text("config"),
        text("stage"),
        real("max_error", null=True),
        text("failure", null=True),
        text("detail", null=True),
        whole("clock_mhz", null=True),
        whole("temperature_c", null=True),
        text("throttle", null=True),
        time("created_at"),
        key("tunedex_trials", "id"),
        refers("tunedex_trials", "sweep_id", "tunedex_sweeps.id"),
        refers("tunedex_trials", "device_key", "tunedex_devices.key"),
        refers("tunedex_trials", "environment_key", "tunedex_environments.key"),
        refers("tunedex_trials", "problem_key", "tunedex_problems.key"),
        sa.CheckConstraint("(time_us IS NULL) <> (failure IS NULL)", name=op.f("ck_tunedex_trials_outcome")),
    )
    op.create_index(
        "ix_tunedex_trials_history",
        "tunedex_trials",
        ["problem_key", "device_key", "environment_key", "kernel_version"],
    )
    index("tunedex_trials", "device_key", "id")
    index("tunedex_trials", "sweep_id", "id")
    op.create_table(
        "tunedex_revisions",
        sa.Column("number", GROWING_ID, autoincrement=False, nullable=False),
        text("device_key"),
        whole("sweep_id", null=True),
        text("note"),
        time("created_at"),
        key("tunedex_revisions", "number"),
        refers("tunedex_revisions", "device_key", "tunedex_devices.key"),
        refers("tunedex_revisions", "sweep_id", "tunedex_sweeps.id"),
    )
    op.create_table(
        "tunedex_bests",
        *measured(),
        whole("id"),
        text("device_key"),
        text("problem_key"),
        whole("rank"),
        text("config_key"),
        text("config"),
        text("kernel_version"),
        text("environment_key"),
        real("default_us", null=True),
        real("library_us", null=True),
        real("roofline_share", null=True),
        text("source"),
        time("measured_at", null=True),
        whole("since"),
        whole("until", null=True),
        key("tunedex_bests", "id"),
        refers("tunedex_bests", "device_key", "tunedex_devices.key"),
        refers("tunedex_bests", "problem_key", "tunedex_problems.key"),
        refers("tunedex_bests", "since", "tunedex_revisions.number"),
        refers("tunedex_bests", "until", "tunedex_revisions.number"),
        sa.CheckConstraint("time_us IS NOT NULL", name=op.f("ck_tunedex_bests_measured")),
        sa.CheckConstraint("until > since", name=op.f("ck_tunedex_bests_valid")),
    )
    op.create_index(
        "uq_tunedex_bests_current",
        "tunedex_bests",
        ["device_key", "problem_key", "rank"],
        unique=True,
        sqlite_where=sa.text("until IS NULL"),
        postgresql_where=sa.text("until IS NULL"),
    )
    index("tunedex_bests", "device_key", "since")
    op.create_table(
        "tunedex_channels",
        text("device_key"),
        text("name"),
        whole("revision"),
        time("moved_at"),
        key("tunedex_channels", "device_key", "name"),
        refers("tunedex_channels", "device_key", "tunedex_devices.key"),
        refers("tunedex_channels", "revision", "tunedex_revisions.number"),
    )
    op.create_table(
        "tunedex_misses",
        whole("id"),
        text("device_key"),
        text("problem_key"),
        text("problem"),
        text("kernel"),
        whole("count"),
        time("first_seen"),
        time("last_seen"),
        key("tunedex_misses", "id"),
        sa.UniqueConstraint("device_key", "problem_key", name=op.f("uq_tunedex_misses_device_key_problem_key")),
    )
    index("tunedex_misses", "last_seen")
    op.create_table(
        "tunedex_ceilings",
        text("device_key"),
        text("environment_key"),
        real("copy_bytes_s"),
        text("flops_s"),
        time("measured_at"),
        key("tunedex_ceilings", "device_key", "environment_key"),
        refers("tunedex_ceilings", "device_key", "tunedex_devices.key"),
        refers("tunedex_ceilings", "environment_key", "tunedex_environments.key"),
    )


def downgrade() -> None:
    for table in ("ceilings", "misses", "channels", "bests", "revisions", "trials", "sweeps"):
        op.drop_table(f"tunedex_{table}")
    for table in ("problems", "kernels", "environments", "devices"):
        op.drop_table(f"tunedex_{table}")
