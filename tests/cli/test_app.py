"""What `tuner` itself takes: its options, and its groups named alone."""

from __future__ import annotations

import pytest

import tunedex
from tunedex.cli.app import run


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{tunedex.__version__}\n", "")


@pytest.mark.parametrize("words", [[], ["db"], ["export"]])
def test_a_group_named_alone_prints_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    alone = capsys.readouterr()
    assert run([*words, "--help"]) == 0
    assert (alone.out, alone.err) == (capsys.readouterr().out, "")
    assert len(alone.out.splitlines()) > 5


@pytest.mark.parametrize("words", [["swep"], ["db", "upgrad"], ["sweep", "--trails", "3"], ["lookup"]])
def test_a_word_that_is_none_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
