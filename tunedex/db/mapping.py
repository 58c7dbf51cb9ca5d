"""Between values and table rows: the only place that knows both spellings.

What reads a row raises `DamagedDatabase` where that is none of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tunedex.core.canonical import key_of
from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput, DamagedDatabase
from tunedex.core.limits import Limits, Objective
from tunedex.core.measurement import Failure, FailureKind, Measurement
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import Signature
from tunedex.db.models import (
    BestRow,
    CeilingRow,
    DeviceRow,
    EnvironmentRow,
    KernelRow,
    MissRow,
    ProblemRow,
    SweepRow,
    TrialRow,
)
from tunedex.db.reading import reads, warn
from tunedex.db.records import Best, Ceilings, Miss, Stage, Sweep, SweepStatus, Trial
from tunedex.db.types import now, row_time, time_of

#: Bytes or operations a second that no device comes near: the fastest of today stay a hundred times below.
MAX_RATE = 1e18

Columns = dict[str, Any]


def problem_columns(problem: Problem) -> Columns:
    return {
        "key": problem.key,
        "kernel": problem.kernel,
        "dims": dict(problem.dims),
        "attributes": dict(problem.attributes),
        "dtypes": dict(problem.dtypes),
        "layout": problem.layout,
        "alignment": problem.alignment,
        "registered_at": now(),
    }


@reads
def problem_of(row: ProblemRow) -> Problem:
    _members("dims", row.dims, int)
    _members("attributes", row.attributes, str)
    _members("dtypes", row.dtypes, str)
    return Problem(row.kernel, row.dims, row.attributes, row.dtypes, row.layout, row.alignment)


def kernel_columns(signature: Signature, registered_at: datetime) -> Columns:
    document = signature.to_dict()
    return {
        "key": key_of(document),
        "name": signature.kernel,
        "version": signature.version,
        "signature": document,
        "registered_at": registered_at,
    }


@reads
def signature_of(row: KernelRow) -> Signature:
    if key_of(row.signature) != row.key:
        raise ValueError("signature is not the one that this key was made of")
    return Signature.from_dict(row.signature)


@reads
def device_of(row: DeviceRow) -> Device:
    found = Device.from_dict(row.description)
    _members("description", {"name": found.name, "vector": found.vector, "profile": found.profile}, str)
    sizes = ("multiprocessors", "memory_bytes", "l2_bytes", "shared_memory_bytes")
    _members("description", {name: getattr(found, name) for name in sizes}, int)
    if found.key != row.key:
        raise ValueError(f"description is of {found.key}")
    return found


def described(row: DeviceRow) -> Device:
    """The device of ``row``; where its description cannot be read, what its key says.

    Raises:
        DamagedDatabase: its key says nothing either.
    """
    try:
        return device_of(row)
    except DamagedDatabase as error:
        try:
            named = Device.from_key(row.key)
        except (BadInput, TypeError):
            raise error from None
        warn([str(error)])
        return named


@reads
def environment_of(row: EnvironmentRow) -> Environment:
    return Environment(row.driver, row.cuda, row.torch, row.triton, row.numba, row.python)


def trial_columns(trial: Trial) -> Columns:
    failure = trial.outcome if isinstance(trial.outcome, Failure) else None
    measurement = trial.outcome if isinstance(trial.outcome, Measurement) else None
    return {
        "sweep_id": trial.sweep,
        "device_key": trial.device,
        "environment_key": trial.environment,
        "problem_key": trial.problem.key,
        "kernel_version": trial.kernel_version,
        "config_key": trial.config.key,
        "config": trial.config.to_dict(),
        "stage": trial.stage.value,
        "max_error": trial.max_error,
        "failure": failure.kind.value if failure else None,
        "detail": failure.detail if failure else None,
        "warm_us": trial.warm_us,
        "clock_mhz": trial.clock_mhz,
        "temperature_c": trial.temperature_c,
        "throttle": trial.throttle,
        "contended": trial.contended,
        "created_at": trial.created_at or now(),
        **(_measurement_columns(measurement) if measurement else {}),
    }


@reads
def trial_of(row: TrialRow, problem: Problem) -> Trial:
    return Trial(
        problem=problem,
        device=row.device_key,
        environment=row.environment_key,
        kernel_version=row.kernel_version,
        config=Config.from_dict(row.config),
        outcome=Failure(FailureKind(row.failure), row.detail or "")
        if row.failure
        else Measurement.from_dict(_measurement_document(row)),
        stage=Stage(row.stage),
        sweep=row.sweep_id,
        warm_us=row.warm_us,
        clock_mhz=row.clock_mhz,
        temperature_c=row.temperature_c,
        throttle=row.throttle,
        contended=row.contended,
        id=row.id,
        created_at=row.created_at,
        max_error=row.max_error,
    )


def best_columns(device: str, problem: Problem, row: Row, since: int) -> Columns:
    return {
        "device_key": device,
        "problem_key": problem.key,
        "rank": row.rank,
        "config_key": row.config.key,
        "config": row.config.to_dict(),
        "kernel_version": row.kernel_version,
        "environment_key": row.environment,
        "default_us": row.default_us,
        "library_us": row.library_us,
        "roofline_share": row.roofline_share,
        "warm_us": row.warm_us,
        "source": row.source,
        "measured_at": time_of(row.measured_at),
        "since": since,
        **_measurement_columns(row.measurement),
    }


@reads
def row_of(row: BestRow) -> Row:
    found = Row.from_dict(
        {
            "rank": row.rank,
            "config": row.config,
            "measurement": _measurement_document(row),
            "kernel_version": row.kernel_version,
            "environment": row.environment_key,
            "default_us": row.default_us,
            "library_us": row.library_us,
            "roofline_share": row.roofline_share,
            "warm_us": row.warm_us,
            "source": row.source,
            "measured_at": row_time(row.measured_at),
        }
    )
    found.check()
    return found


@reads
def best_of(row: BestRow, problem: Problem) -> Best:
    return Best(row.device_key, problem, row_of(row), row.since, row.until, row.id)


def sweep_columns(sweep: Sweep) -> Columns:
    limits = sweep.limits
    return {
        "device_key": sweep.device,
        "environment_key": sweep.environment,
        "options": dict(sweep.options),
        "objective": limits.objective.value,
        "max_error": limits.max_error,
        "max_latency_us": limits.max_latency_us,
        "max_memory": limits.max_memory,
        "policy": limits.policy,
        "status": sweep.status.value,
        "started_at": sweep.started_at or now(),
        "ended_at": sweep.ended_at,
    }


@reads
def sweep_of(row: SweepRow) -> Sweep:
    return Sweep(
        device=row.device_key,
        environment=row.environment_key,
        options=row.options,
        status=SweepStatus(row.status),
        id=row.id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        limits=Limits(Objective(row.objective), row.max_error, row.max_latency_us, row.max_memory, row.policy),
    )


@reads
def miss_of(row: MissRow) -> Miss:
    problem = Problem.from_dict(row.problem)
    if problem.key != row.problem_key:
        raise ValueError(f"problem is the one of {problem.key}")
    return Miss(row.device_key, problem, row.count, row.first_seen, row.last_seen, row.id)


@reads
def ceilings_of(row: CeilingRow) -> Ceilings:
    _members("flops_s", row.flops_s, (int, float))
    for rate in (row.copy_bytes_s, *row.flops_s.values(), *filter(None, [row.cache_bytes_s])):
        if not 0 < rate < MAX_RATE:
            raise ValueError(f"rate {rate:g} is not above 0 and below {MAX_RATE:g} a second")
    return Ceilings(row.copy_bytes_s, row.flops_s, row.cache_bytes_s)


def _members(name: str, members: Mapping[str, Any], kinds: type | tuple[type, ...]) -> None:
    """
    Raises:
        ValueError: a member of the object ``name`` is not of ``kinds``.
    """
    for member, value in members.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{member} in {name} is a {type(value).__name__}")


def _measurement_columns(measurement: Measurement) -> Columns:
    """
    Raises:
        BadInput: the time or the error is not a finite number, which SQLite would read back as none.
    """
    for name in ("time_us", "p20_us", "p80_us", "error"):
        if not math.isfinite(value := getattr(measurement, name)):
            raise BadInput(f"{name}={value} is not a finite number, so this is no measurement", field=name)
    return {
        "time_us": measurement.time_us,
        "p20_us": measurement.p20_us,
        "p80_us": measurement.p80_us,
        "samples": measurement.samples,
        "policy": measurement.policy.value,
        "error": measurement.error,
        "lossless": measurement.lossless,
        "output_hash": measurement.output_hash,
        "peak_memory_bytes": measurement.peak_memory_bytes,
        "shared_memory_bytes": measurement.resources.shared_memory_bytes,
        "registers": measurement.resources.registers,
        "spill_bytes": measurement.resources.spill_bytes,
        "energy_j": measurement.energy_j,
    }


def _measurement_document(row: TrialRow | BestRow) -> dict[str, Any]:
    """As `Measurement.from_dict` takes it.

    Raises:
        ValueError: a column without which there is no measurement is empty.
    """
    for name in _NEEDED:
        if getattr(row, name) is None:
            raise ValueError(f"{name} is NULL")
    return {
        **{name: getattr(row, name) for name in _MEASUREMENT},
        "resources": {name: getattr(row, name) for name in _RESOURCES},
    }


_NEEDED = ("time_us", "p20_us", "p80_us", "samples", "policy", "error", "lossless", "output_hash")
_MEASUREMENT = (*_NEEDED, "peak_memory_bytes", "energy_j")
_RESOURCES = ("shared_memory_bytes", "registers", "spill_bytes")
