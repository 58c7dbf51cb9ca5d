"""A sweep on the CPU with real processes, a real database, and configs that do what they must not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.cli.tuning import command_line
from tunedex.core.config import Config
from tunedex.core.host import cpu
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.snapshot import Match
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, SweepStatus
from tunedex.kernels.base import Kernel

PROBLEM = "planted:batch=1,rows=37,cols=61,dtype=float32"
DIMS = {"rows": 37, "cols": 61, "dtype": "float32"}


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
    assert result["trials"] == 13
    assert result["failures"] == {"crash": 3, "oom": 1, "out_of_resources": 1, "wrong_result": 4}
    assert result["speedup"] == pytest.approx(result["default_us"] / result["best_us"])
    with open_store(str(db)) as store:
        outcomes = {
            (trial.config.values.get("fault", "library")): trial.outcome
            for trial in trials_in(store)
            if trial.stage is Stage.SEARCH
        }
        answer = store.snapshot(cpu().key).answer(planted.signature.problem(DIMS))
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


def test_a_config_that_ends_the_process_in_the_final_costs_itself_alone(
    planted: Kernel, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    monkeypatch.setenv("PLANTED_LATE", str(late))
    assert sweep(db).returncode == 0
    late.touch()
    # A wider bound accepts one more config, so there is a new final.
    again = tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", f"{PROBLEM},max_error=0.5", "--json")
    assert again.returncode == 0, again.stderr
    with open_store(str(db)) as store:
        finals = {
            trial.config.values.get("fault", "library"): trial.outcome
            for trial in trials_in(store)
            if trial.stage is Stage.FINAL and trial.sweep == 2
        }
        rows = store.rows_of(cpu().key, planted.signature.problem(DIMS).key)
    assert {fault for fault, outcome in finals.items() if isinstance(outcome, Failure)} == {"late_raise", "late_exit"}
    assert isinstance(finals["none"], Measurement)
    assert isinstance(finals["library"], Measurement)
    assert rows[0].config.values.get("fault", "none") == "none"
    assert rows[0].default_us == finals["none"].time_us
    assert rows[0].library_us == finals["library"].time_us
    assert not {"late_raise", "late_exit"} & {row.config.values.get("fault") for row in rows}


def test_a_search_that_was_cut_before_its_final_gets_one(planted: Kernel, db: Path) -> None:
    assert sweep(db).returncode == 0
    with open_store(str(db)) as store:
        last = next(trial for trial in trials_in(store) if trial.config.library and trial.stage is Stage.SEARCH)
        store.add_trial(replace(last, id=None, config=Config("numba", {"fault": "none", "gone": 1})))
    assert sweep(db).returncode == 0
    with open_store(str(db)) as store:
        assert {trial.sweep for trial in trials_in(store) if trial.stage is Stage.FINAL} == {1, 2}


def test_a_problem_that_cannot_be_set_up_does_not_stop_the_others(planted: Kernel, db: Path) -> None:
    unlucky = "planted:rows=13,cols=8,dtype=float32"
    done = tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", unlucky, "--problem", PROBLEM, "--json")
    assert done.returncode == 1
    assert "planted: no reference" in done.stderr
    assert "Traceback" not in done.stderr
    first, second = json.loads(done.stdout)["results"]
    assert first["config"] is None
    assert "cannot be set up" in first["fault"]
    assert second["config"] is not None


def test_the_seed_is_the_search_s_and_not_the_inputs(planted: Kernel, db: Path) -> None:
    for seed in ("1", "2"):
        assert sweep(db, "--seed", seed, "--trials", seed).returncode == 0
    other = db.with_name("other.db")
    assert sweep(other, "--seed", "7", "--trials", "2").returncode == 0
    hashes = set()
    for file in (db, other):
        with open_store(str(file)) as store:
            hashes |= {t.outcome.output_hash for t in trials_in(store) if isinstance(t.outcome, Measurement)}
    assert len(hashes) == 1


def test_a_password_is_not_stored_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tuner", "sweep", "--db", "postgresql://me:secret@host/db", "--trials", "3"])
    assert command_line() == "tuner sweep --db postgresql://host/db --trials 3"


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


def test_a_killed_sweep_is_over_once_another_begins(planted: Kernel, db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert sweep(db, "--trials", "2").returncode == 0
    with open_store(str(db)) as store:
        statuses = sorted(each.status for each in store.list_sweeps().items)
    assert statuses == [SweepStatus.DONE, SweepStatus.INTERRUPTED]


def test_two_sweeps_of_one_device_do_not_run_at_once(planted: Kernel, db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 1)
    second = sweep(db.with_name("other.db"))
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert second.returncode == 2
    assert f"cpu is being tuned by process {process.pid}" in second.stderr
    assert process.returncode == 130
    assert "the same command goes on from there" in stderr


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
        (["--budget", "9" * 400], "is not a time above 0 and up to a year"),
        (["--sampler", "guess"], "sampler 'guess' is unknown"),
        (["--preset", "slow"], "preset 'slow' is unknown"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--kernels", "sofmax"], "kernel 'sofmax' is unknown"),
        (["--kernels", ","], "--kernels names no kernel"),
        (["--problem", "softmax:rows=0,cols=4,dtype=float32"], "rows=0: nothing to compute"),
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
        lossless = store.snapshot(cpu().key).answer(planted.signature.problem(DIMS))
    assert sorted(isinstance(outcome, Measurement) for outcome in fault) == [False, True]
    assert not next(outcome for outcome in fault if isinstance(outcome, Measurement)).lossless
    assert lossless.config is not None
    assert lossless.config.values.get("fault", "none") == "none"
