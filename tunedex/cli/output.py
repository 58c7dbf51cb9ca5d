"""Printing: one JSON document on standard output with ``--json``, else a table; everything else on standard error."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tunedex.core.canonical import finite
from tunedex.core.display import time_words
from tunedex.core.errors import CannotRun


def whole(value: str | int) -> int:
    """Read a whole number; a default is one already. Typer would read 2.0 too."""
    if isinstance(value, str):
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", value):
            raise typer.BadParameter(f"{value!r} is not a whole number")
        value = int(value)
    return value


def given_file(value: str | Path) -> Path:
    """Read the name of a file; an empty one would be the folder at hand."""
    if not str(value).strip():
        raise typer.BadParameter("it names no file")
    return Path(value)


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


KernelArgument = Annotated[str, typer.Argument(help="A kernel's name, as `tuner kernels` lists it.")]
KeyOption = Annotated[str, typer.Option("--device", help="auto, all, cuda, cuda:N, cpu, or a device's key.")]
ChannelOption = Annotated[str, typer.Option("--channel", help="stable or candidate.")]
RevisionOption = Annotated[
    int | None,
    typer.Option("--revision", metavar="N", parser=whole, help="A revision, instead of the channel's current one."),
]


def command_group(about: str) -> typer.Typer:
    """A group of commands; named without one it prints its help."""
    return typer.Typer(help=about, callback=help_alone, invoke_without_command=True)


def help_alone(context: typer.Context) -> None:
    """Print the help of a group that is named without a command."""
    if context.invoked_subcommand is None:
        sys.stdout.write(f"{context.get_help()}\n")


def say(message: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{message}\n")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of what is written to ``path`` within that it cannot be.

    Raises:
        CannotRun: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise CannotRun(f"{path} cannot be written: {error.strerror}") from error


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output; numbers that are not finite become null."""
    sys.stdout.write(json.dumps(finite(document), indent=2, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """A table on standard output; a column is flush left where its name begins with ``<``, and a head of nothing but
    empty names is left out.

    On a terminal that is too narrow for the table each row is a paragraph, broken at spaces alone.
    """
    names = [column.lstrip("<") for column in columns]
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(names, *cells, strict=True)]
    if title:
        sys.stdout.write(f"{title}\n")
    if sys.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size().columns:
        for row in cells:
            sys.stdout.write(_paragraph(names, row))
        return
    for row in [names, *cells] if any(names) else cells:
        line = (
            text.ljust(width) if column.startswith("<") else text.rjust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        )
        sys.stdout.write("  ".join(line).rstrip() + "\n")


def _paragraph(names: Sequence[str], row: Sequence[str]) -> str:
    """A row as ``name: value`` pairs under its first cell."""
    pairs = [f"{name}: {text}" if name else text for name, text in zip(names[1:], row[1:], strict=True) if text]
    width = max(40, shutil.get_terminal_size().columns)
    wrap = textwrap.TextWrapper(
        width, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join([row[0], *(line for pair in pairs for line in wrap.wrap(pair))]) + "\n"


def microseconds(value: float | None) -> str:
    """A time for people: three digits and its unit; a dash where there is none."""
    return time_words(value) or "-"
