"""Recordings: spaces of which every config was tried once, so that a search can be replayed with no device.

Two kinds of file are read, plain or gzip: Kernel Tuner's cache, and what `tuner export trials` writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunedex.core.config import Value
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure
from tunedex.interop.packed import read_document
from tunedex.interop.trials import TRIALS_FORMAT, TrialSet, trial_sets_of

#: What a cut cache lacks at its end. Kernel Tuner appends entries, each with a comma, and closes the file when a run is
#: over; a process that is killed leaves half an entry at most.
_CLOSING = "}}"


@dataclass(frozen=True)
class Recording:
    """What every config of one space took on one device.

    ``times_ms`` holds a time a config, None for one that failed. Of a Kernel Tuner cache it is ``time``, which is the
    mean of an entry's ``times`` and what Kernel Tuner itself ranks by; of an export it is the median.
    """

    name: str
    kernel: str
    device_name: str
    #: Of all configs, in the order of the file. A config may lack some, as those of another implementation do.
    parameters: tuple[str, ...]
    configs: tuple[Mapping[str, Value], ...] = field(repr=False)
    times_ms: tuple[float | None, ...] = field(repr=False)

    @property
    def measured_ms(self) -> list[float]:
        """The times of the configs that did not fail."""
        return [time for time in self.times_ms if time is not None]


def read_recordings(path: Path) -> tuple[Recording, ...]:
    """The recordings in a file: one of a cache, one a problem of an export.

    Raises:
        BadInput: it cannot be read, is of neither kind, or no config in it has a time.
    """
    document = read_document(path, _loaded)
    name = _stem(path)
    try:
        if document.get("format") == TRIALS_FORMAT:
            found = _of_export(name, trial_sets_of(document))
        elif isinstance(document.get("cache"), dict):
            found = (_of_cache(name, document),)
        else:
            raise ValueError("it is neither a Kernel Tuner cache nor an export of `tuner export trials`")
    except (ValueError, BadInput) as error:
        raise BadInput(f"{path}: {error}", field="recording") from error
    for recording in found:
        if not recording.measured_ms:
            raise BadInput(f"{path}: no config of {recording.name} has a time", field="recording")
    if not found:
        raise BadInput(f"{path}: there is no trial in it", field="recording")
    return found


def _loaded(text: str) -> Any:
    """The JSON value of ``text``; of a cache that was cut, the entries before the cut."""
    try:
        return json.loads(text)
    except ValueError:
        if '"cache"' not in text:
            raise
        whole = text.rstrip().removesuffix(",")
        for end in (len(whole), whole.rfind("},") + 1):
            try:
                return json.loads(whole[:end] + _CLOSING)
            except ValueError:
                continue
        raise


def _of_cache(name: str, document: Mapping[str, Any]) -> Recording:
    parameters = document.get("tune_params_keys")
    if not isinstance(parameters, list) or not parameters or not all(isinstance(key, str) for key in parameters):
        raise ValueError("tune_params_keys is no list of names")
    configs, times = [], []
    for key, entry in document["cache"].items():
        if not isinstance(entry, dict):
            raise ValueError(f"the entry {key} is no object")
        if missing := [parameter for parameter in parameters if parameter not in entry]:
            raise ValueError(f"the entry {key} has no {missing[0]}")
        configs.append({parameter: _value(key, parameter, entry[parameter]) for parameter in parameters})
        # A failed config has a word in place of its time, and from newer versions on `__error__` beside it.
        times.append(None if "__error__" in entry else _time(entry.get("time")))
    return _recording(
        name, str(document.get("kernel_name", "")), str(document.get("device_name", "")), parameters, configs, times
    )


def _of_export(name: str, sets: Sequence[TrialSet]) -> tuple[Recording, ...]:
    found = []
    for each in sets:
        trials = each.one_a_config()
        configs = [{"implementation": trial.config.implementation, **trial.config.values} for trial in trials]
        times = [None if isinstance(trial.outcome, Failure) else trial.outcome.time_us / 1e3 for trial in trials]
        title = name if len(sets) == 1 else f"{name}:{each.title(sets)}"
        parameters = list(dict.fromkeys(parameter for config in configs for parameter in config))
        found.append(_recording(title, each.problem.kernel, each.device.name, parameters, configs, times))
    return tuple(found)


def _recording(
    name: str,
    kernel: str,
    device_name: str,
    parameters: Sequence[str],
    configs: Sequence[Mapping[str, Value]],
    times: Sequence[float | None],
) -> Recording:
    if len({tuple(config.items()) for config in configs}) < len(configs):
        raise ValueError("a config is in it twice")
    return Recording(name, kernel, device_name, tuple(parameters), tuple(configs), tuple(times))


def _value(key: str, parameter: str, value: Any) -> Value:
    if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{parameter} of the entry {key} is neither a finite number nor a text")
    return value


def _time(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return float(value)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trials")
