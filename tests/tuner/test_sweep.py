"""A sweep on the CPU with real processes, a real database, and configs that do what they must not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.core.host import cpu
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.snapshot import Match
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, SweepStatus
from tunedex.kernels.base import Kernel

PROBLEM = "planted:batch=1,rows=37,cols=61,dtype=float32"


def tuner(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tunedex", *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def sweep(db: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", PROBLEM, *arguments)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "tunedex.db"


def trials_in(store: Store) -> list:
    return store.list_trials(limit=1000).items


def test_every_fault_costs_one_trial_of_its_kind(planted: Kernel, db: Path) -> None:
    done = sweep(db, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (result,) = document["results"]
    assert document["device"]["key"] == cpu().key
    assert result["trials"] == 11
    assert result["failures"] == {"crash": 3, "oom": 1, "out_of_resources": 1, "wrong_result": 4}
    assert result["speedup"] == pytest.approx(result["default_us"] / result["best_us"])
    with open_store(str(db)) as store:
        outcomes = {
            (trial.config.values.get("fault", "library")): trial.outcome
            for trial in trials_in(store)
            if trial.stage is Stage.SEARCH
        }
        answer = store.snapshot(cpu().key).ask("planted", {"rows": 37, "cols": 61, "dtype": "float32"})
    assert isinstance(outcomes["none"], Measurement)
    assert outcomes["none"].error == 0.0
    assert outcomes["none"].lossless
    details = {fault: outcome.detail for fault, outcome in outcomes.items() if isinstance(outcome, Failure)}
    assert "[0, 36, 60]" in details["wrong_last"]
    assert "not finite or not written at [0, 0, 0]" in details["unwritten"]
    assert details["operand"].endswith("operand x was changed")
    assert details["beside"].endswith("memory beside the output was written")
    # What these two overwrote is not held against those that follow.
    assert sum("changed" in detail or "beside" in detail for detail in details.values()) == 2
    assert "SIGABRT" in details["abort"]
    assert "exited with 0" in details["exit"]
    assert "shared memory" in details["limit"]
    assert answer.match is Match.EXACT
    assert answer.config is not None
    assert answer.config.to_dict() == result["config"]
    assert answer.revision == document["revision"]


def test_a_second_run_repeats_no_config(planted: Kernel, db: Path) -> None:
    first = sweep(db, "--trials", "4", "--json")
    assert first.returncode == 0, first.stderr
    second = sweep(db, "--trials", "8", "--json")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["results"][0]["trials"] == 8
    third = sweep(db, "--trials", "8", "--json")
    with open_store(str(db)) as store:
        searched = [trial.config for trial in trials_in(store) if trial.stage is Stage.SEARCH]
        sweeps = store.list_sweeps().items
    assert len(searched) == len(set(searched)) == 8
    assert [each.status for each in sweeps] == [SweepStatus.DONE] * 3
    # Nothing new was tried, so the published state stays as it was.
    assert json.loads(third.stdout)["revision"] == json.loads(second.stdout)["revision"]
    assert json.loads(third.stdout)["results"] == json.loads(second.stdout)["results"]


def start(db: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tunedex", "sweep", "--device", "cpu", "--db", str(db), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_trials(db: Path, count: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if db.exists():
            with open_store(str(db)) as store:
                if len(trials_in(store)) >= count:
                    return
        time.sleep(0.2)
    raise AssertionError(f"no {count} trials in time")


LONG = ("--problem", "softmax:batch=2,rows=512,cols=2048,dtype=float32", "--trials", "200")


def test_ctrl_c_keeps_what_was_measured_and_the_sweep_goes_on(db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 4)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in stderr
    assert "Traceback" not in stderr
    with open_store(str(db)) as store:
        kept = [trial.config for trial in trials_in(store)]
        assert [each.status for each in store.list_sweeps().items] == [SweepStatus.INTERRUPTED]
    more = str(len(kept) + 3)
    again = tuner("sweep", "--device", "cpu", "--db", str(db), "--json", *LONG[:2], "--trials", more)
    assert again.returncode == 0, again.stderr
    with open_store(str(db)) as store:
        searched = [trial.config for trial in trials_in(store) if trial.stage is Stage.SEARCH]
    assert set(kept) <= set(searched)
    assert len(searched) == len(set(searched)) == len(kept) + 3


def test_kill_9_loses_no_stored_trial_and_leaves_no_worker(db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    with open_store(str(db)) as store:
        assert len(trials_in(store)) >= 3
    end = time.monotonic() + 20
    while time.monotonic() < end and _group_lives(process.pid):
        time.sleep(0.2)
    assert not _group_lives(process.pid)


def _group_lives(group: int) -> bool:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trials", "0"], "--trials 0 is not from 1"),
        (["--trials", "-3"], "--trials -3 is not from 1"),
        (["--trials", "many"], "--trials"),
        (["--budget", "soon"], "--budget soon is not a time above 0"),
        (["--budget", "0s"], "--budget 0s is not a time above 0"),
        (["--budget", "nan"], "--budget nan is not a time"),
        (["--sampler", "guess"], "sampler 'guess' is unknown"),
        (["--preset", "slow"], "preset 'slow' is unknown"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--kernels", "sofmax"], "kernel 'sofmax' is unknown"),
        (["--kernels", ","], "--kernels names no kernel"),
        (["--problem", "softmax:rows=0,cols=4,dtype=float32"], "rows=0 leaves nothing to compute"),
        (["--seed", "-1"], "--seed -1 is not from 0"),
        (["--db", "mysql://nowhere/x"], "mysql"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_bad_input_is_one_line_and_stores_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    db = tmp_path / "none.db"
    base = [] if "--device" in arguments else ["--device", "cpu"]
    base += [] if "--db" in arguments else ["--db", str(db)]
    assert run(["sweep", *base, *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    (line,) = done.err.strip().splitlines()
    assert words in line
    assert not db.exists()


def test_a_config_refused_for_its_error_is_tried_again_under_a_wider_bound(planted: Kernel, db: Path) -> None:
    strict = sweep(db, "--json")
    assert json.loads(strict.stdout)["results"][0]["failures"]["wrong_result"] == 4
    wide = tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", f"{PROBLEM},max_error=0.5", "--json")
    assert wide.returncode == 0, wide.stderr
    with open_store(str(db)) as store:
        fault = [
            trial.outcome
            for trial in trials_in(store)
            if trial.config.values.get("fault") == "wrong_last" and trial.stage is Stage.SEARCH
        ]
        lossless = store.snapshot(cpu().key).ask("planted", {"rows": 37, "cols": 61, "dtype": "float32"})
    assert sorted(isinstance(outcome, Measurement) for outcome in fault) == [False, True]
    assert not next(outcome for outcome in fault if isinstance(outcome, Measurement)).lossless
    assert lossless.config is not None
    assert lossless.config.values.get("fault", "none") == "none"
