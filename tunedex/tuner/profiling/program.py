"""Runs somebody's program unchanged, with the recorder inside each Python of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from tunedex.core.errors import BadInput
from tunedex.kernels.base import Kernel
from tunedex.kernels.patterns import Pattern
from tunedex.tuner.profiling.patterns import patterns_of
from tunedex.tuner.settings import SETTINGS

#: A program that a signal ended has this and the signal's number for its exit code, as in a shell.
_SIGNALLED = 128


@dataclass(frozen=True)
class Recording:
    """What a program did: its exit code, its length in seconds, and the documents of its processes.

    ``patterns`` are those that the documents count by number, with the kernel of each.
    """

    exit_code: int
    wall_s: float
    documents: tuple[Mapping[str, Any], ...]
    patterns: tuple[tuple[Kernel, Pattern], ...]


def record(command: Sequence[str], kernels: Sequence[Kernel], *, stdout: TextIO | None = None) -> Recording:
    """Run ``command`` to its end and return what it ran. ``stdout`` takes the place of its standard output.

    Raises:
        BadInput: there is no such program, or it cannot be started.
    """
    if not shutil.which(command[0]):
        raise BadInput(f"there is no program {command[0]!r} to run", field="command")
    patterns = tuple((kernel, pattern) for kernel in kernels for pattern in patterns_of(kernel))
    with tempfile.TemporaryDirectory(prefix="tunedex-profile-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        here = Path(__file__).parent
        shutil.copyfile(here / "bootstrap.py", folder / "sitecustomize.py")
        for name in ("chains.py", "recorder.py"):
            shutil.copyfile(here / name, folder / name)
        plan = {"patterns": [asdict(pattern) for _, pattern in patterns], **asdict(SETTINGS.profiling)}
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        begin_s = time.monotonic()
        exit_code = _run(command, {**os.environ, "PYTHONPATH": path}, stdout)
        wall_s = time.monotonic() - begin_s
        documents = tuple(json.loads(seen.read_text("utf-8")) for seen in sorted(folder.glob("seen-*.json")))
    return Recording(exit_code, wall_s, documents, patterns)


def _run(command: Sequence[str], environment: Mapping[str, str], stdout: TextIO | None) -> int:
    with _signals() as waiting:
        try:
            process = subprocess.Popen(command, env=environment, stdout=stdout)
        except OSError as error:
            raise BadInput(f"{command[0]!r} cannot be run: {error.strerror}", field="command") from error
        waiting.append(process)
        code = process.wait()
    return code if code >= 0 else _SIGNALLED - code


@contextmanager
def _signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Within, Ctrl-C is the program's alone, which gets it from the terminal as well, and a wish to end is passed on
    to it. What it makes of them ends the wait."""
    processes: list[subprocess.Popen[bytes]] = []

    def leave(number: int, frame: FrameType | None) -> None:
        """Do nothing; a handler, unlike a signal that is ignored, is not inherited."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    handlers = {signal.SIGINT: leave, signal.SIGTERM: pass_on, signal.SIGHUP: pass_on}
    # Whoever had them ignored, as nohup, goes on having it so.
    before = {number: signal.getsignal(number) for number in handlers}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, handlers[number])
    try:
        yield processes
    finally:
        for number in mine:
            signal.signal(number, before[number])
