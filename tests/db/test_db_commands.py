"""`tuner db`, `tuner promote` and `tuner rollback`, on both kinds of database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from db_examples import DEVICE, OTHER, problem, row

from tunedex.cli.app import run
from tunedex.cli.tuning import offered
from tunedex.db import Store, migrate
from tunedex.db.checking import check_database

Capture = pytest.CaptureFixture[str]


def test_upgrade_makes_the_tables_and_says_so(empty_url: str, capsys: Capture) -> None:
    assert run(["db", "upgrade", "--db", empty_url]) == 0
    assert "is now up to date" in capsys.readouterr().err
    assert run(["db", "upgrade", "--db", empty_url]) == 0
    assert "is already up to date" in capsys.readouterr().err
    assert run(["db", "check", "--db", empty_url]) == 0
    assert not check_database(empty_url).faults


def test_the_database_is_found_by_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("TUNEDEX_DB", str(tmp_path / "t.db"))
    assert run(["db", "upgrade"]) == 0
    assert (tmp_path / "t.db").is_file()
    assert str(tmp_path / "t.db") in capsys.readouterr().err


def test_stats_count_rows_and_bytes(url: str, store: Store, capsys: Capture) -> None:
    assert run(["db", "stats", "--db", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == store.counts()
    assert document["counts"]["devices"] == 2
    assert document["size_bytes"] > 0
    assert document["schema"] == migrate.HEAD
    assert run(["db", "stats", "--db", url]) == 0
    assert "devices" in capsys.readouterr().out


def test_promote_and_rollback_print_what_moved(url: str, store: Store, capsys: Capture) -> None:
    assert run(["promote", "--db", url]) == 1
    assert "nothing to promote" in capsys.readouterr().err
    for block in (64, 128):
        store.publish(DEVICE.key, {problem(): [row(block)]})
    store.publish(OTHER.key, {problem(): [row()]})
    store.promote()

    assert run(["rollback", "1", "--device", DEVICE.key, "--db", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["channel"], document["moved"]) == ("stable", {DEVICE.key: 1})
    assert store.current_revision(DEVICE.key) == 1
    assert run(["rollback", "1", "--device", DEVICE.key, "--db", url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["moved"] == {}

    assert run(["promote", "--db", url]) == 0
    assert DEVICE.key in capsys.readouterr().out
    assert (store.current_revision(DEVICE.key), store.current_revision(OTHER.key)) == (2, 3)
    assert run(["promote", "--device", OTHER.key, "--revision", "2", "--db", url]) == 0
    assert (store.current_revision(DEVICE.key), store.current_revision(OTHER.key)) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["promote", "--device", "name:none"], "device 'name:none' is unknown"),
        (["promote", "--revision", "7"], "revision 7 is unknown"),
        (["rollback", "7"], "revision 7 is unknown"),
        (["rollback", "0"], "revision 0 is unknown"),
        (["rollback"], "Missing argument"),
        (["rollback", "first"], "Invalid value for 'REVISION'"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_2(
    url: str, store: Store, capsys: Capture, arguments: list[str], words: str
) -> None:
    assert run([*arguments, "--db", url]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tuner: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["db", "upgrade"], ["db", "stats"], ["db", "check"], ["promote"], ["rollback", "1"]]
)
@pytest.mark.parametrize("database", ["mysql://db.example/t", "postgresql://127.0.0.1:1/t", "/proc/t.db", "/tmp"])
def test_a_wrong_database_is_one_line_and_exit_2(command: list[str], database: str, capsys: Capture) -> None:
    assert run([*command, "--db", database]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tuner: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("command", [["db", "stats"], ["db", "check"], ["promote"], ["verify"]])
def test_a_folder_that_is_not_there_is_refused(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "typo"
    assert run([*command, "--db", str(folder / "t.db")]) == 2
    assert capsys.readouterr().err == f"tuner: database {folder}/t.db: there is no folder {folder}\n"
    assert not folder.exists()


@pytest.mark.parametrize("command", [["db", "stats"], ["db", "check"], ["promote"], ["rollback", "1"]])
def test_looking_makes_no_database(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert run([*command, "--db", str(tmp_path / "t.db")]) == 2
    assert "there is no database" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_published_says_whom_it_is_offered_to(url: str, store: Store, capsys: Capture) -> None:
    assert offered(store, DEVICE.key, 0, 0) == f"nothing is published for {DEVICE.key}"
    for block in (64, 128):
        revision = store.publish(DEVICE.key, {problem(): [row(block)]})
    everybody = "published up to revision 2; `tuner serve` answers from it"
    nobody = "published up to revision 2 on candidate; stable offers nothing yet; `tuner promote` moves it"
    assert offered(store, DEVICE.key, revision, 0) == (everybody if store.embedded else nobody)
    store.promote()
    assert offered(store, DEVICE.key, revision, 0) == everybody
    assert run(["rollback", "1", "--db", url]) == 0
    assert "stable is held at 1; `tuner promote` moves it" in capsys.readouterr().err
    held = "on candidate; stable is held at 1; `tuner promote` moves it"
    assert offered(store, DEVICE.key, revision, 0) == f"published up to revision 2 {held}"
    revision = store.publish(DEVICE.key, {problem(): [row(32)]})
    assert offered(store, DEVICE.key, revision, 0) == f"published up to revision 3 {held}"
