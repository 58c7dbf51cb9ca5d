"""Errors, questions and folders."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from core_examples import SIGNATURE, problem

from tunedex.core import errors, folders
from tunedex.core.canonical import canonical_json, finite, time_text
from tunedex.core.channel import Channel, check_channel
from tunedex.core.config import Config
from tunedex.core.errors import BadInput, CannotRun, TunedexError
from tunedex.core.limits import Objective
from tunedex.core.question import parse_parameters, read_question, with_work


def test_one_root_for_all_errors() -> None:
    found = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert all(issubclass(error, TunedexError) for error in found)
    assert {error.__name__ for error in found if issubclass(error, BadInput)} == {
        "BadInput",
        "UnknownKernel",
        "UnknownDevice",
        "UnknownRevision",
        "UnknownSweep",
    }
    assert {error.__name__ for error in found if issubclass(error, CannotRun)} == {
        "CannotRun",
        "MissingExtra",
        "DatabaseError",
        "DamagedDatabase",
        "DeviceError",
    }
    for error in found:
        assert error.__name__ in (errors.__doc__ or "")


def test_core_imports_nothing_installed() -> None:
    names = sorted(path.stem for path in Path(errors.__file__).parent.glob("*.py") if path.stem != "__init__")
    code = f"import sys\nfor name in {names}: __import__('tunedex.core.' + name)\nprint(*sys.modules)"
    # -S leaves site-packages out.
    command = [sys.executable, "-S", "-c", code]
    root = Path(errors.__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=60)
    rooms = {name.split(".")[1] for name in result.stdout.split() if name.startswith("tunedex.")}
    assert rooms == {"core"}


def test_a_question_is_a_problem_and_limits() -> None:
    question = read_question(SIGNATURE, {"rows": "8", "cols": "16", "dtype": "fp32", "objective": "error"})
    assert question.problem == problem()
    assert question.limits.objective is Objective.ERROR


@pytest.mark.parametrize("name", ["batch", "rows", "cols"])
def test_a_question_about_nothing_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name}=0: nothing to compute; a size is at least 1") as caught:
        read_question(SIGNATURE, {"rows": 8, "cols": 16, "dtype": "fp32", name: 0})
    assert caught.value.field == name
    assert with_work(problem()) == problem()


def test_words_of_the_command_line_become_parameters() -> None:
    assert parse_parameters(["rows=8", " cols = 16", "note=a=b"]) == {"rows": "8", "cols": "16", "note": "a=b"}
    assert parse_parameters([]) == {}


@pytest.mark.parametrize(
    ("words", "reason", "field"),
    [
        (["rows"], "'rows' is not name=value", "rows"),
        (["rows="], "'rows=' is not name=value", "rows"),
        (["=8"], "'=8' is not name=value", None),
        ([""], "'' is not name=value", None),
        (["rows=8", "rows=8"], "rows is given twice", "rows"),
    ],
)
def test_a_word_that_is_no_parameter_is_refused(words: list[str], reason: str, field: str | None) -> None:
    with pytest.raises(BadInput, match=reason) as caught:
        parse_parameters(words)
    assert caught.value.field == field


@pytest.mark.parametrize("channel", list(Channel))
def test_a_channel_is_its_name(channel: Channel) -> None:
    assert check_channel(channel.value) is channel
    assert canonical_json({"channel": channel}) == f'{{"channel":"{channel.value}"}}'
    with pytest.raises(BadInput, match="channel 'Stable' is unknown; known are candidate, stable"):
        check_channel("Stable")


def test_a_config_is_shown_in_one_order_whatever_its_source() -> None:
    declared, sent = ({"warps": 4, "block": 64}, {"block": 64, "warps": 4})
    configs = [Config("triton", values) for values in (declared, sent)]
    assert {str(config) for config in configs} == {"triton block=64 warps=4"}
    assert {json.dumps(config.to_dict()) for config in configs} == {
        '{"implementation": "triton", "block": 64, "warps": 4}'
    }
    assert Config.from_dict(configs[0].to_dict()) == configs[0]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"implementation": 5},
        {"implementation": "triton", "block": [64]},
        *({"implementation": "t", "streams": streams} for streams in ("two", "2", 2.5, 0, -1, True)),
    ],
)
def test_what_is_no_config_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a config|is not a count from 1"):
        Config.from_dict(document)


def test_a_time_is_spelled_to_the_microsecond_in_utc() -> None:
    there = datetime(2026, 1, 31, 14, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert time_text(there) == "2026-01-31T09:00:00.000000Z"
    assert time_text(there.replace(microsecond=5)) == "2026-01-31T09:00:00.000005Z"


def test_what_is_not_finite_becomes_nothing() -> None:
    assert finite({"a": [1.5, float("nan"), (float("inf"), 2)], "b": "nan"}) == {
        "a": [1.5, None, [None, 2]],
        "b": "nan",
    }


class TestFolders:
    def test_the_setting_decides(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path))
        assert folders.cache_folder() == tmp_path

    @pytest.mark.skipif(sys.platform != "linux", reason="the XDG rules are Linux's")
    @pytest.mark.parametrize(("setting", "used"), [("", False), ("relative", False), ("/xdg", True)])
    def test_the_users_folders(self, setting: str, used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TUNEDEX_CACHE_DIR", raising=False)
        monkeypatch.setenv("HOME", "/home/somebody")
        for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
            monkeypatch.setenv(name, setting)
        cache, data = ("/xdg", "/xdg") if used else ("/home/somebody/.cache", "/home/somebody/.local/share")
        assert folders.cache_folder() == Path(cache) / "tunedex"
        assert folders.default_database() == Path(data) / "tunedex" / "tunedex.db"
