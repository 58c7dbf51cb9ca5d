"""The store: everything that is remembered, behind one object.

Each method is one transaction, committed when it returns. The queries stand by subject in `recording` (what sweeps
write), `publishing` (revisions and channels) and `listing` (what is there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from tunedex.core.channel import Channel
from tunedex.core.device import Device, Environment
from tunedex.core.errors import DatabaseError
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import Signature
from tunedex.core.snapshot import Snapshot
from tunedex.db import curves, listing, migrate, publishing, recording, snapshots
from tunedex.db import engine as engines
from tunedex.db.records import (
    Best,
    Ceilings,
    Curve,
    DeviceSummary,
    Miss,
    Page,
    Stage,
    Sweep,
    SweepStatus,
    Trial,
    Tried,
)
from tunedex.db.transactions import Patience, transact
from tunedex.db.urls import parse, spelled

_Others = ParamSpec("_Others")
_Result = TypeVar("_Result")

_NONE = Patience()


def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """Open the database at ``url`` (see `database_url`).

    An embedded one is made where there is none (with ``create``) and brought up to date first; one that cannot be
    written is opened for reading. A shared one is never changed by opening it.

    Raises:
        BadInput: ``url`` names no database that Tunedex can use.
        DatabaseError: it cannot be opened, or its schema does not fit this code.
    """
    where = parse(url)
    with engines.opened(where, create=create) as engine:
        if not engines.embedded(where) or engines.read_only(Path(where.database or "")):
            migrate.require_head(engine, where)
        else:
            migrate.upgrade(engine, where)
    return Store(engine, where)


def database_exists(url: str | None = None) -> bool:
    """Whether there is a database at ``url``; a shared one is taken to be there.

    Raises:
        BadInput: ``url`` names no database that Tunedex can use.
        DatabaseError: what is there is no database, or cannot be looked at.
    """
    where = parse(url)
    return not engines.embedded(where) or engines.present(Path(where.database or ""))


def upgrade_database(url: str | None = None) -> tuple[str, bool]:
    """Bring the database at ``url``, of either kind, to the version of this code.

    Returns:
        Its name for people, and whether there was anything to do.

    Raises:
        BadInput: ``url`` names no database that Tunedex can use.
        DatabaseError: it cannot be opened or changed, or is ahead of this code.
    """
    where = parse(url)
    with engines.opened(where, create=True) as engine:
        changed = migrate.upgrade(engine, where)
    engine.dispose()
    return engines.name_of(where), changed


class Store:
    """What is remembered. Safe to use from several threads, and in a forked child; close it, or use it in a ``with``.

    Every method raises `DatabaseError` where the database cannot be read or written.
    """

    def __init__(self, engine: Engine, url: URL, patience: Patience = _NONE) -> None:
        self._patience = patience
        self._engine = engine
        self._writer = engine.execution_options(**{engines.WRITES: True})
        self._url = url

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the store must not be used afterwards."""
        self._engine.dispose()

    def patient(self, patience: Patience) -> Store:
        """This store, on the same connections, for whoever would lose hours with it: what cannot be read or written
        because the database is away is tried again, and nothing is stored twice."""
        return Store(self._engine, self._url, patience)

    @property
    def url(self) -> str:
        """The database's URL, without a password."""
        return spelled(self._url)

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded kind of database, which promotes what is published by itself."""
        return engines.embedded(self._url)

    # Registering: each may be called again with the same, at no harm.

    def register_device(self, device: Device) -> None:
        """Remember ``device``, or its attributes as seen now."""
        self._write(recording.register_device, device)

    def register_environment(self, environment: Environment) -> None:
        self._write(recording.register_environment, environment)

    def register_signatures(self, signatures: Iterable[Signature]) -> None:
        """Remember kernels as they are now. Older versions stay; the one registered last is served."""
        self._write(recording.register_signatures, list(signatures))

    # Sweeping.

    def start_sweep(self, sweep: Sweep) -> int:
        """Record that ``sweep`` begins, and give its number. Its device and environment are registered before."""
        return self._write(recording.start_sweep, sweep)

    def end_sweep(self, sweep: int, status: SweepStatus) -> None:
        """Record how a sweep ended.

        Raises:
            BadInput: there is no such sweep.
        """
        self._write(recording.end_sweep, sweep, status)

    def sweep(self, number: int) -> Sweep | None:
        """The sweep of that number; None where there is none, or it cannot be read."""
        return self._read(recording.sweep, number)

    def add_trial(self, trial: Trial) -> int:
        """Record ``trial``, and its problem where it is new, and give its number. It is kept once this returns."""
        return self.add_trials([trial])[0]

    def add_trials(self, trials: Sequence[Trial]) -> list[int]:
        """Record ``trials`` in one transaction, all or none, and give their numbers in the same order."""
        return self._write(recording.add_trials, trials)

    def trials_of(
        self, problem: str, *, device: str, environment: str, kernel_version: str, stage: Stage | None = None
    ) -> list[Trial]:
        """Every trial of the problem of that key, of any sweep, in the order in which they were recorded."""
        return self._read(
            recording.trials_of,
            problem,
            device=device,
            environment=environment,
            kernel_version=kernel_version,
            stage=stage,
        )

    def tried(self, kernel: str, kernel_version: str) -> list[Tried]:
        """Where problems of that version of the kernel were tried, and how often, by problem, device, environment."""
        return self._read(recording.tried, kernel, kernel_version)

    def loosest_bound(self, device: str, problem: str) -> float | None:
        """The largest ``max_error`` under which the problem of that key was tried; None where none was given."""
        return self._read(recording.loosest_bound, device, problem)

    def last_tried(self, device: str) -> dict[str, int]:
        """The number of each problem's last trial on the device, by the problem's key; without those that have none."""
        return self._read(recording.last_tried, device)

    def disturbed(self, device: str, environment: str) -> set[str]:
        """The keys of the problems whose newest final on the device in that environment was disturbed."""
        return self._read(recording.disturbed, device, environment)

    def ceilings(self, device: str, environment: str) -> Ceilings | None:
        """What the device reaches in that environment; None where it was not measured."""
        return self._read(recording.ceilings, device, environment)

    def put_ceilings(self, device: str, environment: str, ceilings: Ceilings) -> None:
        self._write(recording.put_ceilings, device, environment, ceilings)

    # Publishing.

    def publish(
        self, device: str, answers: Mapping[Problem, Sequence[Row]], *, sweep: int | None = None, note: str = ""
    ) -> int:
        """Publish ``answers`` of ``device`` as a new revision, in one transaction, and give its number.

        The rows of each problem given replace those published before; other problems keep theirs. The revision
        records what every kernel is now. ``candidate`` moves to it, and on an embedded database ``stable`` too where
        it was where ``candidate`` was: one that was rolled back stays until it is promoted. Where no row differs, and
        no kernel from when ``candidate``'s revision was made, nothing is written, and the number is that revision's.

        Raises:
            UnknownDevice: the device is not registered.
        """
        return self._write(publishing.publish, device, answers, sweep=sweep, note=note, stable=self.embedded)

    def promote(self, device: str | None = None, revision: int | None = None) -> dict[str, int]:
        """Move ``stable`` to what ``candidate`` offers, or to ``revision``: of one device, or of every one.

        Returns:
            The revision of each device that moved, by its key; empty where all were there already.

        Raises:
            UnknownDevice: the device is not registered.
            UnknownRevision: the revision was never published.
        """
        return self._write(publishing.promote, device, revision)

    def rollback(self, revision: int, device: str | None = None) -> dict[str, int]:
        """Move ``stable`` back to ``revision``, of one device or of every one; see `promote`.

        A device whose ``stable`` is at the revision or behind it stays there.
        """
        return self._write(publishing.rollback, revision, device)

    def snapshot(self, device: str, *, channel: str = Channel.STABLE, revision: int | None = None) -> Snapshot:
        """Every answer for ``device`` at ``revision``, by default the one that ``channel`` offers.

        The kernels are what they were when the revision was made; the one that a channel offers has those registered
        later besides. A device never seen is described by its key, and has no rows.

        Raises:
            BadInput: the text is no device key, or there is no such channel.
            UnknownRevision: ``revision`` is higher than any published one.
        """
        return self._read(snapshots.snapshot, device, channel=channel, revision=revision)

    def stamp(self, device: str, *, channel: str = Channel.STABLE, revision: int | None = None) -> str:
        """What tells the `snapshot` that the same arguments give from every other: equal stamps, equal snapshots, in
        whatever database. A few indexed reads. Raises what `snapshot` does.
        """
        return self._read(snapshots.stamp, device, channel=channel, revision=revision)

    def rows_of(self, device: str, problem: str, channel: str = Channel.STABLE) -> tuple[Row, ...]:
        """What ``channel`` offers ``device`` for the problem of that key, by rank; empty where it offers nothing.

        Raises:
            BadInput: there is no such channel.
        """
        return self._read(publishing.rows_of, device, problem, channel)

    def current_revision(self, device: str, channel: str = Channel.STABLE) -> int:
        """The revision that ``channel`` offers for ``device``; 0 where there is none. One indexed read."""
        return self._read(publishing.current_revision, device, channel)

    # Looking.

    def devices(self) -> list[DeviceSummary]:
        """Every registered device, by key, with what is remembered of it."""
        return self._read(listing.devices)

    def device(self, key: str) -> Device | None:
        """The registered device of that key; None where there is none."""
        return self._read(listing.device, key)

    def environments(self, keys: Sequence[str] | None = None) -> dict[str, Environment]:
        """The environments of ``keys`` that are known, or all, by key."""
        return self._read(listing.environments, keys)

    def kernels(self) -> list[Signature]:
        """The latest signature of every kernel, by name."""
        return self._read(lambda session: recording.signatures_of(session, recording.latest_kernels(session).values()))

    def list_bests(
        self,
        device: str | None = None,
        kernel: str | None = None,
        *,
        channel: str = Channel.STABLE,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Best]:
        """The best row of each problem that ``channel`` offers, by device, then kernel.

        Raises:
            BadInput: ``limit`` is not from 1 to 1000, ``after`` is no ``next`` of this list, or no such channel.
        """
        return self._read(listing.list_bests, device, kernel, channel, after, limit)

    def list_trials(
        self,
        device: str | None = None,
        kernel: str | None = None,
        problem: str | None = None,
        sweep: int | None = None,
        *,
        status: str | None = None,
        stage: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Trial]:
        """Trials, newest first. ``status`` is ``measured`` or a kind of failure, ``stage`` search or final.

        Raises:
            BadInput: ``limit`` is not from 1 to 1000, or ``after``, ``status`` or ``stage`` is wrong.
        """
        return self._read(listing.list_trials, device, kernel, problem, sweep, status, stage, after, limit)

    def list_sweeps(self, device: str | None = None, *, after: str | None = None, limit: int = 100) -> Page[Sweep]:
        """Sweeps, newest first.

        Raises:
            BadInput: ``limit`` is not from 1 to 1000, or ``after`` is no ``next`` of this list.
        """
        return self._read(listing.list_sweeps, device, after, limit)

    def curves(self, sweep: int) -> list[Curve]:
        """The best time so far of each problem that the sweep of that number searched, in the order of their first
        trials. What earlier sweeps tried is not in it.

        Raises:
            UnknownSweep: there is no such sweep.
        """
        return self._read(curves.curves, sweep)

    def add_misses(self, device: str, counts: Mapping[Problem, int]) -> None:
        """Add to how often each problem was asked for in vain. The device need not be known.

        Raises:
            BadInput: the text is no device key, or a count is below one.
        """
        self._write(recording.add_misses, device, counts)

    def list_misses(
        self, device: str | None = None, kernel: str | None = None, *, after: str | None = None, limit: int = 100
    ) -> Page[Miss]:
        """Misses, those first reported last first.

        Raises:
            BadInput: ``limit`` is not from 1 to 1000, or ``after`` is no ``next`` of this list.
        """
        return self._read(listing.list_misses, device, kernel, after, limit)

    def check(self) -> None:
        """Check that the database can be read and its schema fits this code.

        Raises:
            DatabaseError: it does not.
        """
        with engines.translated(self._url):
            migrate.require_head(self._engine, self._url)

    def counts(self) -> dict[str, int]:
        """The number of rows of every table, by the table's name without its prefix."""
        return self._read(listing.counts)

    def size_bytes(self) -> int:
        """The size of the database on disk, an embedded one's log included."""
        if not self.embedded:
            return self._read(listing.size_bytes)
        path = Path(self._url.database or "")
        try:
            beside = (path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal"))
            return sum(file.stat().st_size for file in beside if file.exists())
        except OSError as error:
            raise DatabaseError(f"database {path} cannot be read: {error.strerror}") from error

    def _read(
        self, work: Callable[Concatenate[Session, _Others], _Result], *args: _Others.args, **kwargs: _Others.kwargs
    ) -> _Result:
        with engines.translated(self._url):
            return transact(self._engine, lambda session: work(session, *args, **kwargs), self._patience, commits=False)

    def _write(
        self, work: Callable[Concatenate[Session, _Others], _Result], *args: _Others.args, **kwargs: _Others.kwargs
    ) -> _Result:
        with engines.translated(self._url):
            return transact(self._writer, lambda session: work(session, *args, **kwargs), self._patience, commits=True)
