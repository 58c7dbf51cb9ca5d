"""`tuner curve`: how fast a real sweep came to its best, and one line where there is no sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunedex.cli.app import run

pytestmark = pytest.mark.usefixtures("undisturbed")

PROBLEM = "softmax:rows=24,cols=60,dtype=float32"


@pytest.fixture
def swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    db = tmp_path / "tunedex.db"
    arguments = ["--device", "cpu", "--db", str(db), "--problem", PROBLEM, "--trials", "6"]
    assert run(["sweep", *arguments]) == 0
    capsys.readouterr()
    return db


def test_the_curve_of_a_sweep(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curve", "1", "--db", str(swept), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run(["curve", "--db", str(swept), "--json"]) == 0  # the newest
    assert json.loads(capsys.readouterr().out) == document
    (curve,) = document["curves"]
    assert document["sweep"] == 1
    assert curve["trials"] == 6
    times, seconds = ([point[name] for point in curve["points"]] for name in ("best_us", "seconds"))
    assert curve["points"][0]["trials"] == 1  # the default comes first
    assert times == sorted(times, reverse=True)
    assert 0 < seconds[0] <= seconds[-1] <= curve["seconds"] < 600
    assert run(["curve", "--db", str(swept)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["problem", "trials", "seconds", "best", "config"]
    assert lines[1].startswith(PROBLEM)
    assert len(lines) == 2 + len(curve["points"])


@pytest.mark.parametrize(("number", "words"), [("9", "there is no sweep 9"), ("x", "'x' is not a whole number")])
def test_no_such_sweep(swept: Path, capsys: pytest.CaptureFixture[str], number: str, words: str) -> None:
    assert run(["curve", number, "--db", str(swept)]) == 2
    assert words in capsys.readouterr().err


def test_no_sweep_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "tunedex.db"
    assert run(["db", "upgrade", "--db", str(db)]) == 0
    capsys.readouterr()
    assert run(["curve", "--db", str(db)]) == 2
    assert capsys.readouterr().err == "tuner: there is no sweep yet; `tuner sweep` makes one\n"
