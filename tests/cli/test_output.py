"""Tables: aligned where there is room, a paragraph a row on a narrow terminal, no cell broken inside a word."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tunedex.cli.output import print_table

ROWS = [["softmax", "rows=1024,cols=4096", "9.1 ms"], ["norm", "rows=7", "12 us"]]


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["<kernel", "<problem", "best"], ROWS, title="on cpu")
    assert capsys.readouterr().out.splitlines() == [
        "on cpu",
        "kernel   problem                best",
        "softmax  rows=1024,cols=4096  9.1 ms",
        "norm     rows=7                12 us",
    ]


def test_a_head_of_empty_names_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["<", "<"], [("match", "exact"), ("why", "")])
    assert capsys.readouterr().out == "match  exact\nwhy\n"


def test_a_narrow_terminal_gets_paragraphs() -> None:
    code = f"from tunedex.cli.output import print_table; print_table(['<kernel', '<problem', 'best'], {ROWS!r})"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "30", "LINES": "24"}
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, timeout=60, env=environment)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert shown.decode().replace("\r\n", "\n").splitlines() == [
        "softmax",
        "  problem: rows=1024,cols=4096",
        "  best: 9.1 ms",
        "norm",
        "  problem: rows=7",
        "  best: 12 us",
    ]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other end is closed
        return b""
