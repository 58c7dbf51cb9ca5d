"""The tables, one class each, and the reason of every index.

Devices, environments and problems are referred to by their keys, so a row reads without a join and means the
same in every database. The names begin alike, because the database may hold other programs' tables: Optuna's has
a ``trials`` too. The first migration makes exactly these tables; a test compares the two.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, MetaData, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tunedex.db.types import Flag, GrowingId, JsonText, UtcDateTime

#: What the name of every table of ours begins with.
PREFIX = "tunedex_"


class Base(DeclarativeBase):
    """The tables of Tunedex. Every constraint has a name, so that a migration can change it on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {str: Text(), float: Double(), int: GrowingId, bool: Flag(), datetime: UtcDateTime()}  # noqa: RUF012


class DeviceRow(Base):
    """A device model; ``description`` is `Device.to_dict`, with the attributes last seen."""

    __tablename__ = "tunedex_devices"

    key: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    name: Mapped[str]
    family: Mapped[str]
    description: Mapped[dict[str, Any]] = mapped_column(JsonText)
    registered_at: Mapped[datetime]
    seen_at: Mapped[datetime]


class EnvironmentRow(Base):
    """The versions that a measurement was taken under."""

    __tablename__ = "tunedex_environments"

    key: Mapped[str] = mapped_column(primary_key=True)
    driver: Mapped[str]
    cuda: Mapped[str]
    torch: Mapped[str]
    triton: Mapped[str]
    numba: Mapped[str]
    python: Mapped[str]
    registered_at: Mapped[datetime]


class KernelRow(Base):
    """What a kernel was at some time, by the key of its signature; the one registered last is the newest."""

    __tablename__ = "tunedex_kernels"

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    signature: Mapped[dict[str, Any]] = mapped_column(JsonText)
    registered_at: Mapped[datetime]


class ProblemRow(Base):
    """A problem, by the parts that make its key."""

    __tablename__ = "tunedex_problems"

    key: Mapped[str] = mapped_column(primary_key=True)
    kernel: Mapped[str]
    dims: Mapped[dict[str, int]] = mapped_column(JsonText)
    attributes: Mapped[dict[str, str]] = mapped_column(JsonText)
    dtypes: Mapped[dict[str, str]] = mapped_column(JsonText)
    layout: Mapped[str]
    alignment: Mapped[int]
    registered_at: Mapped[datetime]

    __table_args__ = (
        # Lists of trials and bests are filtered by kernel, which only its problems know.
        Index(None, "kernel"),
    )


class SweepRow(Base):
    """One run of a sweep, with what it was asked for."""

    __tablename__ = "tunedex_sweeps"

    id: Mapped[int] = mapped_column(primary_key=True)
    device_key: Mapped[str] = mapped_column(ForeignKey("tunedex_devices.key"))
    environment_key: Mapped[str] = mapped_column(ForeignKey("tunedex_environments.key"))
    options: Mapped[dict[str, Any]] = mapped_column(JsonText)
    objective: Mapped[str]
    max_error: Mapped[float | None]
    max_latency_us: Mapped[float | None]
    max_memory: Mapped[int | None]
    policy: Mapped[str]
    status: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    __table_args__ = (
        # A device's sweeps are listed newest first.
        Index(None, "device_key", "id"),
    )


class Measured:
    """The columns of a measurement, which trials and bests share; all are empty where a trial failed."""

    time_us: Mapped[float | None]
    p20_us: Mapped[float | None]
    p80_us: Mapped[float | None]
    samples: Mapped[int | None]
    policy: Mapped[str | None]
    error: Mapped[float | None]
    lossless: Mapped[bool | None]
    output_hash: Mapped[str | None]
    peak_memory_bytes: Mapped[int | None]
    shared_memory_bytes: Mapped[int | None]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    energy_j: Mapped[float | None]
    warm_us: Mapped[float | None]


class TrialRow(Measured, Base):
    """One config tried: a measurement, or the kind of ``failure``. Written once, never changed."""

    __tablename__ = "tunedex_trials"

    id: Mapped[int] = mapped_column(primary_key=True)
    sweep_id: Mapped[int | None] = mapped_column(ForeignKey("tunedex_sweeps.id"))
    device_key: Mapped[str] = mapped_column(ForeignKey("tunedex_devices.key"))
    environment_key: Mapped[str] = mapped_column(ForeignKey("tunedex_environments.key"))
    problem_key: Mapped[str] = mapped_column(ForeignKey("tunedex_problems.key"))
    kernel_version: Mapped[str]
    config_key: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JsonText)
    stage: Mapped[str]
    max_error: Mapped[float | None]
    failure: Mapped[str | None]
    detail: Mapped[str | None]
    clock_mhz: Mapped[int | None]
    temperature_c: Mapped[int | None]
    throttle: Mapped[str | None]
    contended: Mapped[bool | None]
    created_at: Mapped[datetime]

    __table_args__ = (
        CheckConstraint("(time_us IS NULL) <> (failure IS NULL)", name="outcome"),
        # A sweep that resumes, and the choice of the best, read all trials of one problem on one device.
        Index("ix_tunedex_trials_history", "problem_key", "device_key", "environment_key", "kernel_version"),
        # A device's trials are listed newest first.
        Index(None, "device_key", "id"),
        # The trials of one sweep are listed newest first.
        Index(None, "sweep_id", "id"),
    )


class RevisionRow(Base):
    """One published state of all answers."""

    __tablename__ = "tunedex_revisions"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device_key: Mapped[str] = mapped_column(ForeignKey("tunedex_devices.key"))
    sweep_id: Mapped[int | None] = mapped_column(ForeignKey("tunedex_sweeps.id"))
    note: Mapped[str]
    created_at: Mapped[datetime]


class RevisionKernelRow(Base):
    """A kernel as it was when the revision was made, one row for each kernel that was known then; never changed."""

    __tablename__ = "tunedex_revision_kernels"

    revision: Mapped[int] = mapped_column(ForeignKey("tunedex_revisions.number"), primary_key=True, autoincrement=False)
    kernel_key: Mapped[str] = mapped_column(ForeignKey("tunedex_kernels.key"), primary_key=True)


class BestRow(Measured, Base):
    """A published row, valid from revision ``since`` up to before ``until``; only ``until`` is ever written later.

    ``environment_key`` refers to no table: an imported row may come from an environment of which only the key is
    known.
    """

    __tablename__ = "tunedex_bests"

    id: Mapped[int] = mapped_column(primary_key=True)
    device_key: Mapped[str] = mapped_column(ForeignKey("tunedex_devices.key"))
    problem_key: Mapped[str] = mapped_column(ForeignKey("tunedex_problems.key"))
    rank: Mapped[int]
    config_key: Mapped[str]
    config: Mapped[dict[str, Any]] = mapped_column(JsonText)
    kernel_version: Mapped[str]
    environment_key: Mapped[str]
    default_us: Mapped[float | None]
    library_us: Mapped[float | None]
    roofline_share: Mapped[float | None]
    source: Mapped[str]
    measured_at: Mapped[datetime | None]
    since: Mapped[int] = mapped_column(ForeignKey("tunedex_revisions.number"))
    until: Mapped[int | None] = mapped_column(ForeignKey("tunedex_revisions.number"))

    __table_args__ = (
        CheckConstraint("time_us IS NOT NULL", name="measured"),
        CheckConstraint("until > since", name="valid"),
        # Publishing replaces a problem's current rows, of which there is one of each rank; also keeps it so.
        Index(
            "uq_tunedex_bests_current",
            "device_key",
            "problem_key",
            "rank",
            unique=True,
            sqlite_where=text("until IS NULL"),
            postgresql_where=text("until IS NULL"),
        ),
        # A snapshot reads what one device had at one revision.
        Index(None, "device_key", "since"),
    )


class ChannelRow(Base):
    """Which revision a channel offers for one device."""

    __tablename__ = "tunedex_channels"

    device_key: Mapped[str] = mapped_column(ForeignKey("tunedex_devices.key"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(ForeignKey("tunedex_revisions.number"))
    moved_at: Mapped[datetime]


class MissRow(Base):
    """A problem asked for and not answered exactly.

    Clients report these, so they refer to no other table: neither devices nor problems grow by what anybody asks.
    """

    __tablename__ = "tunedex_misses"

    id: Mapped[int] = mapped_column(primary_key=True)
    device_key: Mapped[str]
    problem_key: Mapped[str]
    problem: Mapped[dict[str, Any]] = mapped_column(JsonText)
    kernel: Mapped[str]
    count: Mapped[int]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]

    __table_args__ = (
        # A report adds to the count of its row, which is found by this.
        UniqueConstraint("device_key", "problem_key"),
        # The table is bounded: those not asked for the longest are dropped first.
        Index(None, "last_seen"),
    )


class CeilingRow(Base):
    """What a device reaches in practice in one environment."""

    __tablename__ = "tunedex_ceilings"

    device_key: Mapped[str] = mapped_column(ForeignKey("tunedex_devices.key"), primary_key=True)
    environment_key: Mapped[str] = mapped_column(ForeignKey("tunedex_environments.key"), primary_key=True)
    copy_bytes_s: Mapped[float]
    flops_s: Mapped[dict[str, float]] = mapped_column(JsonText)
    cache_bytes_s: Mapped[float | None]
    measured_at: Mapped[datetime]
