"""Profiles of programs, for tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunedex.kernels.registry import all_kernels
from tunedex.tuner.profiling.patterns import patterns_of
from tunedex.tuner.profiling.profile import Profile, profile_of
from tunedex.tuner.profiling.program import Recording, record
from tunedex.tuner.profiling.recorder import Recorder, _Watch
from tunedex.tuner.settings import SETTINGS


def recorder_in(folder: Path, **changes: int) -> Recorder:
    """A recorder with ``changes`` to its settings."""
    patterns = [asdict(pattern) for kernel in all_kernels().values() for pattern in patterns_of(kernel)]
    return Recorder(folder, {"patterns": patterns, **asdict(SETTINGS.profiling), **changes})


def profile_in(recorder: Recorder) -> Profile:
    """What ``recorder`` has seen."""
    document: dict[str, Any] = json.loads(json.dumps(recorder.document()))
    assert not document["error"]
    patterns = tuple((kernel, pattern) for kernel in all_kernels().values() for pattern in patterns_of(kernel))
    return profile_of(Recording(0, 1.0, (document,), patterns))


def profiled(folder: Path, program: Callable[[], object], **changes: int) -> Profile:
    """``program`` as it is seen when it runs here."""
    recorder = recorder_in(folder, **changes)
    with _Watch(recorder):
        program()
    return profile_in(recorder)


def profiled_script(folder: Path, code: str) -> Profile:
    """A Python script as it is seen when it runs in a process of its own."""
    script = folder / "script.py"
    script.write_text(code)
    return profile_of(record([sys.executable, str(script)], list(all_kernels().values())))


def problems(profile: Profile) -> dict[str, int]:
    """The calls by problem."""
    return {str(hot.problem): hot.calls for hot in profile.problems}
