"""A child process that owns one object, runs its methods, and can be killed.

Whatever a config does to the child (crash, hang, exit, abort) costs the call under way and nothing else: the
caller gets a `ProcessFailure` and the next call starts a fresh child.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tunedex.core.errors import TunedexError

_TAIL_BYTES = 2_000


class ProcessFailure(TunedexError):
    """The child did not answer: ``timed_out``, or it ended with ``exit_code`` (negative: a signal)."""

    def __init__(self, message: str, *, timed_out: bool = False, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.exit_code = exit_code


class RemoteError(TunedexError):
    """The child's method raised something that is not ours; the message names it."""


class ChildProcess:
    """A spawned child that owns ``factory(*arguments)``. Not thread-safe: one caller at a time.

    The child's output is kept apart from the parent's; its end is quoted when the child dies.
    """

    def __init__(self, factory: Callable[..., Any], *arguments: Any, start_s: float) -> None:
        self._factory = factory
        self._arguments = arguments
        self._start_s = start_s
        self._context = multiprocessing.get_context("spawn")
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._retired = False
        self._log: tempfile._TemporaryFileWrapper[bytes] | None = None
        self.starts = 0

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """The result of ``method(*arguments)`` on the child's object, starting the child if none runs.

        Raises:
            ProcessFailure: the child died or took longer than ``timeout_s``; it is gone afterwards.
            TunedexError: what the method raised, where it is one of ours.
            RemoteError: what the method raised, where it is not.
        """
        if self._connection is None:
            self._start()
        connection = self._connection
        assert connection is not None
        try:
            connection.send((method, arguments))
            return self._receive(connection, timeout_s, method)
        except (BrokenPipeError, EOFError, ConnectionResetError):
            raise self._died(method) from None
        except KeyboardInterrupt:
            self.close()
            raise

    @property
    def running(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        """Kill the child, if one runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        if self._log is not None:
            self._log.close()
        self._process = self._connection = self._log = None

    def retire(self) -> None:
        """Kill the child for good, from whichever thread: a call under way fails, and none starts another child."""
        self._retired = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError, ValueError):
                process.kill()

    def _start(self) -> None:
        if self._retired:
            raise ProcessFailure("retired")
        parent, child = self._context.Pipe()
        self._log = tempfile.NamedTemporaryFile(prefix="tunedex-worker-")  # noqa: SIM115 - lives as long as the child
        self._process = self._context.Process(
            target=_serve, args=(child, self._log.name, self._factory, self._arguments), daemon=True
        )
        # The tracker that the first child brings along would unblock the signal again.
        multiprocessing.resource_tracker.ensure_running()
        # Blocked from its first moment on, for Ctrl-C reaches the whole process group: the parent decides what it ends.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.close()
        self._connection = parent
        self.starts += 1
        if self._retired:  # meanwhile
            self.close()
            raise ProcessFailure("retired")
        try:
            self._receive(parent, self._start_s, "start")
        except (EOFError, ConnectionResetError):
            raise self._died("start") from None
        except BaseException:
            self.close()
            raise

    def _receive(self, connection: Connection, timeout_s: float, method: str) -> Any:
        if not connection.poll(timeout_s):
            self.close()
            raise ProcessFailure(f"{method} took longer than {timeout_s:g} s", timed_out=True)
        ok, value = connection.recv()
        if ok:
            return value
        raise value

    def _died(self, method: str) -> ProcessFailure:
        process = self._process
        assert process is not None
        process.join(10)
        code = process.exitcode
        tail = self._tail()
        self.close()
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exited with {code}"
        return ProcessFailure(f"{method}: the worker {how}{': ' + tail if tail else ''}", exit_code=code)

    def _tail(self) -> str:
        if self._log is None:
            return ""
        with Path(self._log.name).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _serve(connection: Connection, log: str, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The child's loop: build the object, then answer calls until the pipe closes."""
    _die_with_parent()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        target = factory(*arguments)
        connection.send((True, None))
    except Exception as error:  # noqa: BLE001 - reported to the parent, which decides
        connection.send((False, _portable(error)))
        return
    while True:
        try:
            method, call_arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            reply = (True, getattr(target, method)(*call_arguments))
        except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
            reply = (False, _portable(error))
        connection.send(reply)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however it ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _portable(error: Exception) -> TunedexError:
    if isinstance(error, TunedexError):
        return error
    return RemoteError(f"{type(error).__name__}: {' '.join(str(error).split())[:_TAIL_BYTES]}")
