"""`tuner export`: what a real sweep left, replayed as a recording and opened by Optuna."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest

from tunedex.cli.app import run
from tunedex.db import open_store
from tunedex.interop.trials import read_trial_sets

PROBLEMS = ("softmax:rows=16,cols=64,dtype=float32", "softmax:rows=32,cols=64,dtype=float32")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database after a short sweep of this host's CPU."""
    database = tmp_path_factory.mktemp("swept") / "tunedex.db"
    problems = [word for problem in PROBLEMS for word in ("--problem", problem)]
    command = ["sweep", "--device", "cpu", *problems, "--trials", "6", "--db", str(database), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tunedex", *command], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return database


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "study created" not in err
    document: dict[str, Any] = json.loads(out)
    return document


def test_an_export_is_replayed(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json.gz"
    told = printed(capsys, "export", "trials", "-o", str(path), "--db", str(swept))
    with open_store(str(swept), create=False) as store:
        assert told == {"file": str(path), "problems": 2, "trials": store.counts()["trials"]}
    replayed = printed(capsys, "replay", str(path), "--sampler", "random", "--seeds", "2")["recordings"]
    assert list(replayed) == [f"out:{problem}" for problem in PROBLEMS]
    for found, exported in zip(replayed.values(), read_trial_sets(path), strict=True):
        fastest_us = min(trial.outcome.time_us for trial in exported.one_a_config())
        assert found["optimum_ms"] == fastest_us / 1e3
        assert found["configs"] == len({trial.config for trial in exported.trials})


def test_an_export_is_of_what_the_options_name(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    options = ["export", "trials", "-o", str(path), "--db", str(swept)]
    assert printed(capsys, *options, "--problem", PROBLEMS[1])["problems"] == 1
    assert str(read_trial_sets(path)[0].problem) == PROBLEMS[1]
    device = read_trial_sets(path)[0].device.key
    assert printed(capsys, *options, "--kernel", "softmax", "--device", device)["problems"] == 2
    assert run([*options, "--kernel", "linear_gelu"]) == 1
    assert "there is no such trial" in capsys.readouterr().err


def test_optuna_opens_the_studies(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    told = printed(capsys, "export", "optuna", url, "--db", str(swept))["studies"]
    assert sorted(optuna.get_all_study_names(url)) == sorted(each["name"] for each in told)
    for each, problem in zip(told, PROBLEMS, strict=True):
        study = optuna.load_study(study_name=each["name"], storage=url)
        assert study.user_attrs["problem"]["kernel"] == "softmax"
        assert each["name"].startswith(f"{problem} @ cpu-")
        assert len(study.trials) == each["trials"]
        assert study.best_value == each["best_us"]
        assert study.best_params["implementation"] in ("numba", "library")
    assert run(["export", "optuna", url, "--db", str(swept)]) == 2
    assert "has a study softmax:rows=16,cols=64,dtype=float32 @ cpu-" in capsys.readouterr().err


def test_the_database_of_the_trials_is_refused_and_stays_as_it_was(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "optuna", str(swept), "--db", f"sqlite:///{swept}"]) == 2
    assert "is the database that the trials are in; give Optuna's studies another" in capsys.readouterr().err
    assert run(["db", "check", "--db", str(swept)]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trials", "-o", "out.json", "--kernel", "nothing"], "kernel 'nothing' is unknown; known are"),
        (["trials", "-o", "out.json", "--device", "H200"], "device 'H200' is not a device key"),
        (["trials", "-o", "out.json", "--problem", "softmax"], "problem 'softmax' is not KERNEL:name=value"),
        (["trials", "-o", "out.json", "--problem", "softmax:rows=x"], "rows"),
        (["trials", "-o", "folder/out.json"], "there is no folder folder"),
        (["trials", "-o", "foreign.json"], "foreign.json is there and is no export of trials"),
        (["trials"], "Missing option"),
        (["optuna"], "Missing argument 'URL'"),
        (["optuna", "mysql://host/name"], "has an unknown scheme"),
        (["optuna", "sqlite:///folder/studies.db"], "unable to open database file"),
        (["optuna", "foreign.json"], "file is not a database"),
        (["optuna", "postgresql://u:secret@127.0.0.1:1/name"], "127.0.0.1"),
    ],
)
def test_bad_input_is_one_line(
    swept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("foreign.json").write_text('{"mine": 1}' * 100)
    assert run(["export", *arguments, "--db", str(swept)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert words in err
    assert "secret" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.json"]
