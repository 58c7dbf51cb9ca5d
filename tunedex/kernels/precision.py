"""The compute precision of torch's float32 matrix products on CUDA, set for a while.

Torch keeps it in one setting for the whole process, and reads it when a product is launched. So whoever launches one
in a precision holds that precision meanwhile: threads that want the same one hold it together, others wait for their
turn. What the process had before is restored when nobody holds any.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tunedex.core.config import Value


@contextmanager
def matmul_precision(precision: Value) -> Iterator[None]:
    """Run torch's float32 matrix products in ``precision`` (``ieee`` or ``tf32``), then as before.

    Blocks while another thread runs in another precision. May be nested, in the same precision or another one.
    """
    outer = _HELD.enter(str(precision))
    try:
        yield
    finally:
        _HELD.leave(outer)


class _Held:
    """Which threads run in which precision. Those that run at the same time run in the same one; the others wait in
    the order in which they came. A thread that waits, be it to nest another precision or to come back from one, runs
    nothing and holds nobody up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, str] = {}
        self._waiting: deque[object] = deque()
        #: What the process had, while it has something else.
        self._before: str | None = None

    def enter(self, precision: str) -> str | None:
        """Run in ``precision`` from now on; returns what this thread ran in until now, None for nothing."""
        outer = self._running.get(threading.get_ident())
        if outer != precision:
            self._switch(precision)
        return outer

    def leave(self, outer: str | None) -> None:
        """Run in ``outer``, as before `enter`."""
        if self._running.get(threading.get_ident()) != outer:
            self._switch(outer)

    def _switch(self, precision: str | None) -> None:
        with self._changed:
            self._stop()
            if precision is None:
                return
            ticket = object()
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and all(p == precision for p in self._running.values())
                )
                self._start(precision)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _start(self, precision: str) -> None:
        backend = _backend()
        found = str(backend.fp32_precision)
        # Where nothing is set at all, torch multiplies exactly.
        if ("ieee" if found == "none" else found) != precision:
            backend.fp32_precision = precision
            self._before = found
        self._running[threading.get_ident()] = precision

    def _stop(self) -> None:
        held = self._running.pop(threading.get_ident(), None)
        if not self._running and self._before is not None:
            backend = _backend()
            if backend.fp32_precision == held:  # else somebody else has set it meanwhile, and shall have it so
                backend.fp32_precision = self._before
            self._before = None
        self._changed.notify_all()

    def after_fork(self) -> None:
        """In a forked child only the thread that forked lives on, and nobody releases what others held."""
        own = self._running.get(threading.get_ident())
        held = own or next(iter(self._running.values()), None)
        self._changed, self._waiting = threading.Condition(), deque()
        self._running = {threading.get_ident(): held} if held else {}
        if own is None:
            with self._changed:
                self._stop()


def _backend() -> Any:
    import torch

    return torch.backends.cuda.matmul


_HELD = _Held()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_HELD.after_fork)
