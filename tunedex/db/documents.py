"""Records as the list endpoints show them. A device and an environment are objects with a ``key``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from tunedex.core.canonical import time_text
from tunedex.core.device import Environment
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.problem import Problem
from tunedex.db.records import Best, Curve, DeviceSummary, Miss, Sweep, Trial

#: Environments by key.
Environments = Mapping[str, Environment]


def problem_document(problem: Problem) -> dict[str, Any]:
    """A problem with its key, by which trials are filtered."""
    return {"key": problem.key, **problem.to_dict()}


def device_document(summary: DeviceSummary) -> dict[str, Any]:
    """A device with what is remembered of it."""
    return {
        **summary.device.to_dict(),
        "environments": summary.environments,
        "kernels": summary.kernels,
        "problems": summary.problems,
        "trials": summary.trials,
        "last_measured": _time(summary.last_measured),
    }


def environment_document(key: str, known: Environments) -> dict[str, str]:
    """The versions of the environment ``key``; the key alone where it was imported and is not known."""
    environment = known.get(key)
    return environment.to_dict() if environment else {"key": key}


def best_document(best: Best, environments: Environments) -> dict[str, Any]:
    """A published row, as a snapshot carries it, with its problem and the revisions that it holds for."""
    row = best.row.to_dict()
    return {
        "id": best.id,
        "device": {"key": best.device},
        "problem": problem_document(best.problem),
        **{name: value for name, value in row.items() if name != "environment"},
        "environment": environment_document(best.row.environment, environments),
        "speedup": best.row.speedup,
        "since": best.since,
        "until": best.until,
    }


def trial_document(trial: Trial, environments: Environments) -> dict[str, Any]:
    """A trial; of ``measurement`` and ``failure`` one is null. A ``max_error`` of null is the lossless rule."""
    outcome = trial.outcome
    return {
        "id": trial.id,
        "device": {"key": trial.device},
        "environment": environment_document(trial.environment, environments),
        "sweep": trial.sweep,
        "problem": problem_document(trial.problem),
        "kernel_version": trial.kernel_version,
        "config": trial.config.to_dict(),
        "stage": trial.stage.value,
        "measurement": outcome.to_dict() if isinstance(outcome, Measurement) else None,
        "failure": {"kind": outcome.kind.value, "detail": outcome.detail} if isinstance(outcome, Failure) else None,
        "max_error": trial.max_error,
        "warm_us": trial.warm_us,
        "clock_mhz": trial.clock_mhz,
        "temperature_c": trial.temperature_c,
        "throttle": trial.throttle,
        "contended": trial.contended,
        "created_at": _time(trial.created_at),
    }


def sweep_document(sweep: Sweep, environments: Environments) -> dict[str, Any]:
    return {
        "id": sweep.id,
        "device": {"key": sweep.device},
        "environment": environment_document(sweep.environment, environments),
        "options": dict(sweep.options),
        "limits": asdict(sweep.limits),
        "status": sweep.status.value,
        "started_at": _time(sweep.started_at),
        "ended_at": _time(sweep.ended_at),
    }


def curve_document(curve: Curve) -> dict[str, Any]:
    return {
        "problem": problem_document(curve.problem),
        "trials": curve.trials,
        "seconds": curve.seconds,
        "points": [{**asdict(point), "config": point.config.to_dict()} for point in curve.points],
    }


def miss_document(miss: Miss) -> dict[str, Any]:
    return {
        "id": miss.id,
        "device": {"key": miss.device},
        "problem": problem_document(miss.problem),
        "count": miss.count,
        "first_seen": _time(miss.first_seen),
        "last_seen": _time(miss.last_seen),
    }


def _time(value: datetime | None) -> str | None:
    return None if value is None else time_text(value)
