"""What the commands that measure have in common: how their options are read, how they are watched, what they print."""

from __future__ import annotations

import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tunedex.cli.output import microseconds, print_json, say
from tunedex.core.display import without_password
from tunedex.core.errors import BadInput

if TYPE_CHECKING:
    from tunedex.db import Store
    from tunedex.tuner.devices import DetectedDevice
    from tunedex.tuner.report import Progress

_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>s|m|h|)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = 366 * 86_400.0


def names(kernels: str | None) -> list[str]:
    """The kernels that ``--kernels`` names; none where it is not given.

    Raises:
        BadInput: it is given and names none.
    """
    if kernels is None:
        return []
    found = [name.strip() for name in kernels.split(",") if name.strip()]
    if not found:
        raise BadInput("--kernels names no kernel", field="kernels")
    return found


def seconds(text: str | None, option: str) -> float | None:
    """The time that ``--option`` gives, as ``90s``, ``5m`` or ``1h``; None where it is not given.

    Raises:
        BadInput: it is no time.
    """
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    found = float(match["number"]) * _SECONDS[match["unit"]] if match else 0.0
    if not 0 < found <= _LONGEST_S:
        raise BadInput(f"--{option} {text} is not a time above 0 and up to a year, such as 90s, 5m or 1h", field=option)
    return found


def command_line() -> str:
    """The command as it was given, less the password of a database."""
    return shlex.join(["tuner", *map(without_password, sys.argv[1:])])


def announce(found: DetectedDevice) -> None:
    """Say which device comes next, and what is to be known of it."""
    for line in (f"{found.device.name} ({found.device.key})", *found.notes):
        say(line)


def offered(store: Store, device: str, revision: int, before: int) -> str:
    """What was published for ``device`` beyond the revision ``before``, up to ``revision``; who is offered it, and what
    offers it to everybody."""
    stable = store.current_revision(device)
    if not revision:
        return f"nothing is published for {device}"
    what = "published up to" if revision > before else "nothing new was published since"
    if stable >= revision:
        return f"{what} revision {revision}; `tuner serve` answers from it"
    held = f"stable is held at {stable}" if stable else "stable offers nothing yet"
    return f"{what} revision {revision} on candidate; {held}; `tuner promote` moves it"


def print_documents(documents: Sequence[Mapping[str, Any]], command: str, several: str) -> None:
    """One JSON document: the only device's, or those of all under the name ``several``."""
    head = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
    print_json({**head, **documents[0]} if len(documents) == 1 else {**head, several: documents})


@contextmanager
def watching() -> Iterator[Callable[[Progress], None]]:
    """A progress bar of each device on standard error; where that is no terminal, a line when a task or its final
    begins. What it gives may be called from any thread."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    lock = threading.Lock()
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown: dict[str, TaskID] = {}
        before: dict[str, tuple[str, str]] = {}

        def watch(progress: Progress) -> None:
            name, _, rest = progress.task.partition(":")
            unit = " an item" if progress.per_item else ""
            best = f", best {microseconds(progress.best_us)}{unit}" if progress.best_us else ""
            with lock:
                if progress.device not in shown:
                    shown[progress.device] = bar.add_task("starting", total=None)
                device = f"{progress.device}: " if len(shown) > 1 else ""
                bar.update(
                    shown[progress.device],
                    description=f"{device}{name} {progress.phase}{best}",
                    completed=progress.done,
                    total=progress.total,
                )
                if not console.is_terminal and before.get(progress.device) != (progress.task, progress.phase):
                    say(f"{device}{name} {progress.phase}{best} {rest}".rstrip())
                before[progress.device] = (progress.task, progress.phase)

        yield watch
