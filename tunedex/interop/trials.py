"""Exports: the trials of a database as one file, which `tuner replay` reads and another search starts from.

The document is `{format, version, sets}`. A set holds the trials of one problem with one version of its kernel, on one
device in one environment, oldest first, as the list of trials shows them less what the set says; and its space, the
values of every parameter that occur in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tunedex.core.config import Config, Value
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind, Measurement
from tunedex.core.problem import Problem
from tunedex.core.typed import check_types
from tunedex.db import Store
from tunedex.db.documents import problem_document, trial_document
from tunedex.db.records import Stage, Trial
from tunedex.interop.packed import document_in, read_document, write_document

TRIALS_FORMAT = "tunedex-trials"
TRIALS_VERSION = 1

#: What a set says for all its trials, and numbers that mean something in one database alone.
_SAID_ONCE = ("id", "sweep", "device", "environment", "problem", "kernel_version")
#: What tells one board from another of its kind.
_OF_ONE_BOARD = ("uuid",)

_PAGE = 1000


@dataclass(frozen=True)
class TrialSet:
    """The trials of one problem with one kernel version, on one device in one environment, oldest first.

    ``versions`` is None where the environment is known by its key alone.
    """

    device: Device
    environment: str
    versions: Environment | None
    problem: Problem
    kernel_version: str
    trials: tuple[Trial, ...] = field(repr=False)

    def one_a_config(self) -> list[Trial]:
        """One trial of each config, in the order in which they were first tried: the newest of the search, whose times
        were all taken alike, and the newest of a final only where there is no other."""
        chosen: dict[Config, Trial] = {}
        for trial in self.trials:
            before = chosen.get(trial.config)
            if before is None or trial.stage is Stage.SEARCH or before.stage is Stage.FINAL:
                chosen[trial.config] = trial
        return list(chosen.values())

    def title(self, among: Sequence[TrialSet], *, device: bool = False) -> str:
        """The problem, and what tells this set from others of it ``among`` several; with ``device`` its key in any
        case."""
        parts = [str(self.problem)]
        same = [each for each in among if each.problem == self.problem]
        if device or len({each.device.key for each in same}) > 1:
            parts.append(self.device.key)
        if len({each.environment for each in same}) > 1:
            parts.append(self.environment)
        if len({each.kernel_version for each in same}) > 1:
            parts.append(self.kernel_version)
        return " @ ".join(parts)

    def space(self) -> dict[str, list[Value]]:
        """The values of every parameter that occur, in ascending order where they are numbers."""
        values: dict[str, dict[Value, None]] = {}
        for trial in self.trials:
            for name, value in trial.config.to_dict().items():
                values.setdefault(name, {})[value] = None
        return {name: _ascending(list(found)) for name, found in values.items()}

    def to_dict(self) -> dict[str, Any]:
        attributes = {name: value for name, value in self.device.attributes.items() if name not in _OF_ONE_BOARD}
        return {
            "device": replace(self.device, attributes=attributes).to_dict(),
            "environment": self.versions.to_dict() if self.versions else {"key": self.environment},
            "kernel": self.problem.kernel,
            "kernel_version": self.kernel_version,
            "problem": problem_document(self.problem),
            "space": self.space(),
            "trials": [_trial_document(trial) for trial in self.trials],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialSet:
        """Read what `to_dict` gives.

        Raises:
            BadInput: it is something else.
        """
        try:
            environment = data["environment"]["key"]
            known = "python" in data["environment"]
            found = cls(
                device=Device.from_dict(data["device"]),
                environment=environment,
                versions=Environment.from_dict(data["environment"]) if known else None,
                problem=Problem.from_dict(data["problem"]),
                kernel_version=data["kernel_version"],
                trials=(),
            )
            found = replace(found, trials=tuple(found._trial(trial) for trial in data["trials"]))
            check_types(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"a set of trials in it cannot be read: {what}", field="trials") from error
        return found

    def _trial(self, data: Mapping[str, Any]) -> Trial:
        failure, measurement = data["failure"], data["measurement"]
        if (failure is None) is (measurement is None):
            raise ValueError("of measurement and failure one is null")
        outcome: Measurement | Failure
        if failure is None:
            outcome = Measurement.from_dict(measurement)
            check_types(outcome)
            outcome.check()
        else:
            outcome = Failure(FailureKind(failure["kind"]), failure["detail"])
        created_at = data.get("created_at")
        return Trial(
            problem=self.problem,
            device=self.device.key,
            environment=self.environment,
            kernel_version=self.kernel_version,
            config=Config.from_dict(data["config"]),
            outcome=outcome,
            stage=Stage(data["stage"]),
            warm_us=data.get("warm_us"),
            clock_mhz=data.get("clock_mhz"),
            temperature_c=data.get("temperature_c"),
            throttle=data.get("throttle"),
            created_at=datetime.fromisoformat(created_at) if created_at else None,
            max_error=data.get("max_error"),
            contended=data.get("contended"),
        )


def trial_sets(
    store: Store, *, device: str | None = None, kernel: str | None = None, problem: Problem | None = None
) -> list[TrialSet]:
    """The trials of the database, of one device, kernel and problem where they are given, in the order in which their
    problems were first tried."""
    trials: list[Trial] = []
    after = None
    while True:
        page = store.list_trials(device, kernel, problem.key if problem else None, limit=_PAGE, after=after)
        trials += page.items
        if (after := page.next) is None:
            break
    devices = {summary.device.key: summary.device for summary in store.devices()}
    environments = store.environments()
    sets: dict[tuple[str, str, str, str], list[Trial]] = {}
    for trial in reversed(trials):  # they come newest first
        key = (trial.device, trial.environment, trial.problem.key, trial.kernel_version)
        sets.setdefault(key, []).append(trial)
    return [
        TrialSet(devices[key], environment, environments.get(environment), found[0].problem, version, tuple(found))
        for (key, environment, _, version), found in sets.items()
        if key in devices  # one whose row cannot be read is named in a warning, and left out
    ]


def trial_sets_of(document: Mapping[str, Any]) -> list[TrialSet]:
    """The sets of an export.

    Raises:
        BadInput: it is none, or of another version.
    """
    if document.get("format") != TRIALS_FORMAT or not isinstance(document.get("sets"), list):
        raise BadInput("it is no export of `tuner export trials`", field="trials")
    if document.get("version") != TRIALS_VERSION or document["version"] is True:
        raise BadInput(
            f"version {document.get('version')!r} of an export is not {TRIALS_VERSION}, which this Tunedex reads",
            field="trials",
        )
    return [TrialSet.from_dict(each) for each in document["sets"]]


def read_trial_sets(path: Path) -> list[TrialSet]:
    """The sets in a file that `write_trial_sets` has written.

    Raises:
        BadInput: it cannot be read, or is another.
    """
    document = read_document(path)
    try:
        return trial_sets_of(document)
    except BadInput as error:
        raise BadInput(f"{path}: {error}", field="file") from error


def write_trial_sets(path: Path, sets: Sequence[TrialSet]) -> None:
    """Write an export, whole or not at all, packed where its name ends in ``.gz``. Equal trials give an equal file.

    Raises:
        OSError: it cannot be written.
    """
    write_document(
        path, {"format": TRIALS_FORMAT, "version": TRIALS_VERSION, "sets": [each.to_dict() for each in sets]}
    )


def is_export(content: bytes) -> bool:
    """Whether the bytes of a file are those of an export."""
    try:
        return document_in(content).get("format") == TRIALS_FORMAT
    except ValueError:
        return False


def _trial_document(trial: Trial) -> dict[str, Any]:
    return {name: value for name, value in trial_document(trial, {}).items() if name not in _SAID_ONCE}


def _ascending(values: list[Value]) -> list[Value]:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if numbers else values
