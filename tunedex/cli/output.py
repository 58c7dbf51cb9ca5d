"""Printing: one JSON document on standard output with ``--json``, else a table; everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tunedex.core.canonical import finite
from tunedex.core.display import time_words

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Database URL (sqlite:///FILE, postgresql://...) or a file; default TUNEDEX_DB, else a file of yours.",
        show_default=False,
    ),
]


def say(message: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{message}\n")


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output; numbers that are not finite become null."""
    sys.stdout.write(json.dumps(finite(document), indent=2, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """A table on standard output, as wide as the terminal, or as its content where the output is no terminal."""
    console = Console(file=sys.stdout, soft_wrap=False)
    if not console.is_terminal:
        console.width = 240
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.lstrip("<"), justify="left" if column.startswith("<") else "right", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(table)


def microseconds(value: float | None) -> str:
    """A time for people: three digits and its unit; a dash where there is none."""
    return time_words(value) or "-"
