"""`tuner replay`: on a cache and on an export, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunedex.cli.app import run


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A cache of 64 configs on a slope, the fastest 1 ms."""
    entries = {
        f"{x},{y}": {"x": x, "y": y, "time": 1.0 + abs(x - 5) + abs(y - 3) if x + y < 14 else "RuntimeFailedConfig"}
        for x in range(8)
        for y in range(8)
    }
    path = tmp_path / "slope.json"
    head = {"device_name": "a GPU", "kernel_name": "slope", "tune_params_keys": ["x", "y"]}
    path.write_text(json.dumps({**head, "cache": entries}))
    return path


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["replay", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_document_has_the_shape_that_others_read(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = replayed(capsys, str(recording), "--sampler", "random", "--seeds", "3")
    (found,) = document["recordings"].values()
    assert list(document["recordings"]) == ["slope"]
    assert (found["configs"], found["optimum_ms"], found["seeds"]) == (64, 1.0, 3)
    assert list(found["loss"]) == ["10", "20", "50", "100", "200"]
    assert found["loss"]["100"] == found["loss"]["200"] == 0  # of 64 configs, the fastest is carried forward
    assert list(found["loss"].values()) == sorted(found["loss"].values(), reverse=True)
    assert 1 <= found["trials_to_5_percent"] <= 64
    assert (
        replayed(capsys, str(recording), "--sampler", "random", "--seeds", "3")["recordings"]["slope"]["loss"]
        == (found["loss"])
    )


def test_the_trials_bound_the_budgets(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = replayed(capsys, str(recording), "--sampler", "tpe", "--seeds", "2", "--trials", "15")
    assert list(document["recordings"]["slope"]["loss"]) == ["10", "15"]


def test_recordings_of_one_name_are_called_by_their_path(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other" / recording.name
    other.parent.mkdir()
    other.write_bytes(recording.read_bytes())
    options = ["--sampler", "random", "--seeds", "1", "--trials", "5"]
    document = replayed(capsys, str(recording), str(other), str(recording), *options)
    assert list(document["recordings"]) == ["slope", f"{other.parent}/slope"]


def test_the_table_has_a_line_a_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(recording), "--sampler", "random", "--seeds", "2", "--trials", "20"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "recording"
    assert "loss at 20" in head
    assert line.startswith("slope ")
    assert "1 ms" in line
    assert "±" in line


def test_no_database_is_read(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEDEX_DB", "nonsense://")
    assert run(["replay", str(recording), "--sampler", "random", "--seeds", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sampler", "best"], "--sampler best is unknown; known are auto, random"),
        (["--trials", "0"], "--trials 0 is not at least 1"),
        (["--seeds", "-1"], "--seeds -1 is not at least 1"),
        (
            ["--sampler", "tpe", "--warm", "slope.json"],
            "--warm is for the sampler auto; tpe learns from its own trials",
        ),
        (["--warm", "nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
        (["nowhere.json"], "nowhere.json cannot be read: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(
    recording: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["replay", str(recording), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert words in err


def test_no_recording_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay"]) == 2
    assert "RECORDING" in capsys.readouterr().err
