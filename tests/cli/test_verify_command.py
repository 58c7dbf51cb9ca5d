"""`tuner verify` as it is run: an upgrade between a sweep and the next look."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.core.channel import Channel
from tunedex.core.host import cpu
from tunedex.db import open_store

pytestmark = pytest.mark.usefixtures("undisturbed")

PROBLEM = "softmax:rows=24,cols=60,dtype=float32"


@pytest.fixture
def upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A newer numba's metadata, found before the installed one's; gives its version."""
    folder = tmp_path / "newer"
    (folder / "numba-99.1.dist-info").mkdir(parents=True)
    (folder / "numba-99.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 99.1\n")
    monkeypatch.syspath_prepend(str(folder))
    return "99.1"


def verify(db: Path, *arguments: str) -> int:
    return run(["verify", "--device", "cpu", "--db", str(db), *arguments])


def test_an_upgrade_is_seen_reported_and_then_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    db = tmp_path / "tunedex.db"
    assert run(["sweep", "--device", "cpu", "--db", str(db), "--problem", PROBLEM, "--trials", "2"]) == 0
    capsys.readouterr()
    assert verify(db) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"nothing to verify: 1 problem published for {cpu().key}, measured in this environment" in said.err

    version = request.getfixturevalue("upgraded")
    assert verify(db, "--budget", "0.001s", "--json") == 1
    cut = capsys.readouterr()
    assert (json.loads(cut.out)["left"], json.loads(cut.out)["results"]) == (1, [])
    assert "the budget is spent: 1 problem left; the same command goes on" in cut.err

    assert verify(db, "--json", "--kernels", "softmax") == 0
    document = json.loads(capsys.readouterr().out)
    (result,) = document["results"]
    assert document["device"]["key"] == cpu().key
    assert document["environment"]["numba"] == version
    assert (document["current"], document["left"]) == (0, 0)
    assert result["outcome"] in {"kept", "faster", "slower", "replaced"}
    assert result["old"]["environment"] != result["new"]["environment"] == document["environment"]["key"]
    with open_store(str(db)) as store:
        assert store.current_revision(cpu().key) == document["revision"] == 2
        assert store.list_sweeps().items[0].options["command"] == document["command"]

    assert verify(db, "--all") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["kernel", "problem", "outcome", "before", "now", "config", "now", "detail"]
    assert table[1].startswith("softmax  rows=24,cols=60,dtype=float32")


def test_a_final_that_was_disturbed_confirms_nothing_until_it_is_held_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], busy: Callable[[], AbstractContextManager[None]]
) -> None:
    db = tmp_path / "tunedex.db"
    again = "other work on the device disturbed its final; the same command takes it again"
    with busy():
        assert run(["sweep", "--device", "cpu", "--db", str(db), "--problem", PROBLEM, "--trials", "2"]) == 0
        capsys.readouterr()
        assert verify(db) == 1
        said = capsys.readouterr()
        _, line = said.out.splitlines()
        assert line.split()[2] == "disturbed"
        assert line.endswith(", which does not count")
        assert again in said.err
        assert "nothing to verify" not in said.err
        assert verify(db, "--all", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    (result,) = document["results"]
    assert (result["outcome"], result["new"], document["complete"]) == ("disturbed", None, False)
    assert result["measured_us"] > 0
    assert result["disturbed_by"] == "other work on the device"
    assert verify(db) == 0
    said = capsys.readouterr()
    assert again not in said.err
    assert verify(db) == 0
    assert "nothing to verify" in capsys.readouterr().err


def test_a_rollback_outlives_what_is_published_later_and_both_commands_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = tmp_path / "tunedex.db"
    swept = ["sweep", "--device", "cpu", "--db", str(db), "--problem", PROBLEM, "--trials", "2"]
    assert run(swept) == 0
    assert "published up to revision 1; `tuner serve` answers from it" in capsys.readouterr().err
    with open_store(str(db)) as store:
        snapshot = store.snapshot(cpu().key)
        (problem,) = snapshot.problems.values()
        store.publish(cpu().key, {replace(problem, alignment=1): snapshot.rows[problem.key]})
    assert run(["rollback", "1", "--db", str(db)]) == 0
    capsys.readouterr()
    held = " revision {} on candidate; stable is held at 1; `tuner promote` moves it"
    assert run([*swept, "--json"]) == 0
    said = capsys.readouterr()
    revision = json.loads(said.out)["revision"]
    # The same rows make nothing new.
    assert f"nothing new was published since{held.format(revision)}" in said.err
    assert verify(db, "--all") == 0
    with open_store(str(db)) as store:
        newest = store.current_revision(cpu().key, Channel.CANDIDATE)
        assert newest >= 2
        assert store.current_revision(cpu().key) == 1
    since = "published up to" if newest > revision else "nothing new was published since"
    assert f"{since}{held.format(newest)}" in capsys.readouterr().err


def test_a_database_with_nothing_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "tunedex.db"
    open_store(str(db)).close()
    assert verify(db) == 0
    assert f"nothing to verify: nothing is published for {cpu().key}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "soon"], "--budget soon is not a time above 0"),
        (["--kernels", ","], "--kernels names no kernel"),
        (["--kernels", "sofmax"], "kernel 'sofmax' is unknown"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--db", "mysql://nowhere/x"], "mysql"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    db = tmp_path / "tunedex.db"
    open_store(str(db)).close()
    base = ["verify", *([] if "--device" in arguments else ["--device", "cpu"])]
    base += [] if "--db" in arguments else ["--db", str(db)]
    assert run([*base, *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("tuner: ")
    assert words in said.err
    assert "Traceback" not in said.err


def test_no_database_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path / "none.db") == 2
    assert "none.db" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
