"""The measuring process of a device, which can be replaced by a fresh one.

Times agree within a run of a process far better than between two of them (where memory lies, what a library has
chosen, is fixed for a run). So a final is taken in a process that searched nothing, in which all of its configs meet
the same conditions. Starting one takes seconds; where that disturbs nothing it is done while the search goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError


class Worker:
    """One measuring process at a time. Not thread-safe: one caller.

    Args:
        make: makes a child that has not started.
        ahead: whether `prepare` starts the next one in the background. On a CPU that would disturb the measuring.
    """

    def __init__(self, make: Callable[[], ChildProcess], *, ahead: bool) -> None:
        self._make = make
        self._ahead = ahead
        self._child = make()
        self._next: tuple[ChildProcess, Future[None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="standby")

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """See `ChildProcess.call`."""
        return self._child.call(method, *arguments, timeout_s=timeout_s)

    def start(self) -> None:
        """See `ChildProcess.start`."""
        self._child.start()

    @property
    def running(self) -> bool:
        return self._child.running

    def discard(self) -> None:
        """Kill the process; the next call starts one."""
        self._child.close()

    def prepare(self) -> None:
        """Have the process that follows started, in the background."""
        if self._ahead and self._next is None:
            child = self._make()
            self._next = child, self._thread.submit(child.start)

    def renew(self) -> None:
        """Kill the process and go on with a fresh one: the one prepared, else one that the next call starts."""
        self._child.close()
        following, self._next = self._next, None
        self._child = self._make()
        if following:
            child, started = following
            try:
                started.result()
                self._child = child
            except (ProcessFailure, RemoteError):  # whoever calls the one in its place learns why
                child.close()

    def close(self) -> None:
        """Kill every process, for good."""
        self._child.close()
        if self._next:
            self._next[0].retire()
        self._thread.shutdown(wait=True)
        if self._next:
            self._next[0].close()
