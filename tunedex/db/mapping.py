"""Between values and table rows: the only place that knows both spellings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tunedex.core.canonical import key_of
from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.limits import Limits, Objective
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import Signature
from tunedex.db.models import (
    BestRow,
    DeviceRow,
    EnvironmentRow,
    KernelRow,
    MissRow,
    ProblemRow,
    SweepRow,
    TrialRow,
)
from tunedex.db.records import Best, Miss, Stage, Sweep, SweepStatus, Trial
from tunedex.db.types import now, row_time, time_of

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


def problem_of(row: ProblemRow) -> Problem:
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


def signature_of(row: KernelRow) -> Signature:
    return Signature.from_dict(row.signature)


def device_of(row: DeviceRow) -> Device:
    return Device.from_dict(row.description)


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


def trial_of(row: TrialRow, problem: Problem) -> Trial:
    return Trial(
        problem=problem,
        device=row.device_key,
        environment=row.environment_key,
        kernel_version=row.kernel_version,
        config=Config.from_dict(row.config),
        outcome=Failure(FailureKind(row.failure), row.detail or "") if row.failure else _measurement_of(row),
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


def row_of(row: BestRow) -> Row:
    return Row(
        rank=row.rank,
        config=Config.from_dict(row.config),
        measurement=_measurement_of(row),
        kernel_version=row.kernel_version,
        environment=row.environment_key,
        default_us=row.default_us,
        library_us=row.library_us,
        roofline_share=row.roofline_share,
        warm_us=row.warm_us,
        source=row.source,
        measured_at=row_time(row.measured_at),
    )


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


def miss_of(row: MissRow) -> Miss:
    return Miss(row.device_key, Problem.from_dict(row.problem), row.count, row.first_seen, row.last_seen, row.id)


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


def _measurement_of(row: TrialRow | BestRow) -> Measurement:
    given: Mapping[str, Any] = {name: getattr(row, name) for name in _MEASUREMENT}
    return Measurement(
        **{**given, "policy": Policy(given["policy"])},
        resources=Resources(row.shared_memory_bytes, row.registers, row.spill_bytes),
    )


_MEASUREMENT = (
    "time_us",
    "p20_us",
    "p80_us",
    "samples",
    "policy",
    "error",
    "lossless",
    "output_hash",
    "peak_memory_bytes",
    "energy_j",
)
