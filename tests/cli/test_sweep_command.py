"""`tuner sweep` as it is run: what it says of what it did, and of what it did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunedex.cli.app import run

pytestmark = pytest.mark.usefixtures("undisturbed")

PROBLEM = "softmax:rows=24,cols=60,dtype=float32"


def sweep(db: Path, *arguments: str, problem: str = PROBLEM) -> int:
    return run(["sweep", "--device", "cpu", "--db", str(db), "--problem", problem, *arguments])


def test_a_search_that_was_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "tunedex.db"
    assert sweep(db, "--trials", "2", "--json") == 0
    said = capsys.readouterr()
    (result,) = json.loads(said.out)["results"]
    assert (result["trials"], result["trials_wanted"]) == (2, 2)
    assert f"{PROBLEM}: all 2 trials went to the default, the library's calls" in said.err
    assert sweep(db, "--trials", "3") == 0
    assert "trials went to" not in capsys.readouterr().err
