"""A sweep on the CPU with real processes, a real database, and configs that do what they must not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from sweeping import DIMS, PROBLEM, sweep, trials_in, tuner

from tunedex.cli.app import run
from tunedex.cli.tuning import command_line
from tunedex.core.host import cpu
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.snapshot import Match
from tunedex.db import open_store
from tunedex.db.records import Stage
from tunedex.kernels.base import Kernel


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "tunedex.db"


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
        disturbed = any(trial.contended for trial in trials_in(store) if trial.stage is Stage.FINAL)
        rows = store.rows_of(cpu().key, planted.signature.problem(DIMS).key)
    assert {fault for fault, outcome in finals.items() if isinstance(outcome, Failure)} == {"late_raise", "late_exit"}
    assert isinstance(finals["none"], Measurement)
    assert isinstance(finals["library"], Measurement)
    assert rows[0].config.values.get("fault", "none") == "none"
    if disturbed:
        return  # by other work on this machine: it takes no incumbent's place
    assert rows[0].default_us == finals["none"].time_us
    assert rows[0].library_us == finals["library"].time_us
    assert not {"late_raise", "late_exit"} & {row.config.values.get("fault") for row in rows}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (13, "cannot be set up: RuntimeError: planted: no reference"),
        (17, "has no cost: ZeroDivisionError: planted: no cost"),
    ],
)
def test_a_problem_that_cannot_be_set_up_does_not_stop_the_others(
    rows: int, words: str, planted: Kernel, db: Path
) -> None:
    unlucky = f"planted:rows={rows},cols=8,dtype=float32"
    done = tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", unlucky, "--problem", PROBLEM, "--json")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    first, second = json.loads(done.stdout)["results"]
    assert first["config"] is None
    assert words in first["fault"]
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trials", "0"], "--trials 0 is not from 1"),
        (["--trials", "0.0"], "Invalid value for '--trials': '0.0' is not a whole number"),
        (["--seed", "2.0"], "Invalid value for '--seed': '2.0' is not a whole number"),
        (["--problems", ""], "Invalid value for '--problems': it names no file"),
        (["--trials", "-3"], "--trials -3 is not from 1"),
        (["--trials", "many"], "--trials"),
        (["--budget", "soon"], "--budget soon is not a time above 0"),
        (["--budget", "0s"], "--budget 0s is not a time above 0"),
        (["--budget", "nan"], "--budget nan is not a time"),
        (["--budget", "\u0665s"], "is not a time above 0 and up to a year"),
        (["--budget", "9" * 400], "is not a time above 0 and up to a year"),
        (["--sampler", "guess"], "--sampler guess is unknown"),
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


def test_one_problem_under_two_bounds_is_two_results(planted: Kernel, db: Path) -> None:
    wide = ("--problem", f"{PROBLEM},max_error=0.5")
    both = tuner("sweep", "--device", "cpu", "--db", str(db), "--problem", PROBLEM, *wide, "--json")
    document = json.loads(both.stdout)
    assert [result["max_error"] for result in document["results"]] == [None, 0.5]
    assert document["complete"] is True
    assert (document["interrupted"], document["left"], document["lost"]) == (False, 0, [])
    # The second's process is the one that held the first's final: it is opened anew, under the wider bound.
    with open_store(str(db)) as store:
        tried = [trial for trial in trials_in(store) if trial.config.values.get("fault") == "wrong_last"]
        rows = store.rows_of(cpu().key, planted.signature.problem(DIMS).key)
    assert [isinstance(trial.outcome, Measurement) for trial in tried if trial.max_error is None] == [False]
    assert {isinstance(trial.outcome, Measurement) for trial in tried if trial.max_error == 0.5} == {True}
    if not document["results"][1]["contended"]:  # else it takes no incumbent's place
        assert any(row.config.values.get("fault") == "wrong_last" and not row.measurement.lossless for row in rows)


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
