"""The crash matrix on the CPU: the real sweep, over configs that fail in every way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.core.measurement import Failure, FailureKind, Measurement
from tunedex.db import open_store
from tunedex.db.records import Stage, SweepStatus

ROOT = Path(__file__).parents[2]


def test_every_kind_of_failure_costs_one_trial_and_no_other_config(tmp_path: Path) -> None:
    db = tmp_path / "tunedex.db"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "crash_matrix.py"), "--device", "cpu", "--db", str(db)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"device", "environment", "date", "command", "crash_matrix"}
    assert document["crash_matrix"] == dict.fromkeys(sorted([*FailureKind, "innocent"]), "recorded")

    with open_store(str(db)) as store:
        trials = sorted(store.list_trials(limit=1000).items, key=lambda trial: trial.id or 0)
        (sweep,) = store.list_sweeps().items
    assert sweep.status is SweepStatus.DONE
    searched = [trial for trial in trials if trial.stage is Stage.SEARCH]
    details = {
        trial.config.values["fault"]: trial.outcome.detail for trial in searched if isinstance(trial.outcome, Failure)
    }
    assert "(first call) took longer than" in details["hang"]
    assert "(first call) took longer than" in details["hang_with_lock"]
    assert "(first call): the worker was stopped by a signal" in details["stop"]
    assert "(first call): the worker was killed by SIGSEGV" in details["segfault"]
    assert "(first call): the worker was killed by SIGABRT" in details["abort"]
    assert "(first call): the worker exited with 0" in details["exit_0"]
    assert "(first call): the worker exited with 3" in details["exit_3"]
    assert details["leave"] == "SystemExit: 0"
    assert "1 elements beyond tolerance, first at [0, 1534, 1020]" in details["wrong_last"]
    assert "is faster than" in details["untimed"]
    # Every final is of configs that do no wrong, and each of the two that a sweep must have is among them.
    finals = {trial.config.values.get("fault", "library") for trial in trials if trial.stage is Stage.FINAL}
    assert {"none", "library"} <= finals <= {"none", "library", "flood", "innocent_1", "innocent_2", "innocent_3"}
    assert all(isinstance(trial.outcome, Measurement) for trial in trials if trial.stage is Stage.FINAL)


@pytest.mark.parametrize("words", ["0s", "-1s", "soon", "nan", "1e400"])
def test_a_trial_s_time_is_one_or_is_refused(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "none.db"
    assert run(["sweep", "--device", "cpu", "--db", str(db), f"--trial-timeout={words}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith(f"--trial-timeout {words} is not a time above 0 and up to a year, such as 90s, 5m or 1h")
    assert not db.exists()
