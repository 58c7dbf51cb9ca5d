"""What runs inside a child process: it makes an object, then answers calls of the object's methods."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tunedex.core.display import one_line
from tunedex.core.errors import TunedexError
from tunedex.tuner import pulse
from tunedex.tuner.pulse import Pulse
from tunedex.tuner.settings import SETTINGS


class RemoteError(TunedexError):
    """The child's method raised something that is not ours; the message names it."""


@dataclass(frozen=True)
class Ends:
    """The child's ends of what ties it to its parent: calls and answers, what it prints, and a pipe that closes when
    the parent ends."""

    calls: Connection
    output: Connection
    lifeline: Connection
    pulse: Pulse


def serve(ends: Ends, made: bytes, beat_s: float) -> None:
    """Make the object that ``made`` says, a pickled factory with its arguments, and answer until the parent ends."""
    # A group of its own: whatever it starts can be killed with it, and the terminal's Ctrl-C does not reach it.
    os.setsid()
    for connection in (ends.calls, ends.output, ends.lifeline):
        os.set_inheritable(connection.fileno(), False)
    for stream in (1, 2):
        os.dup2(ends.output.fileno(), stream)
    pulse.have(ends.pulse)
    _die_with_parent(ends.lifeline)
    threading.Thread(target=_beat, args=(ends, beat_s), name="heart", daemon=True).start()
    try:
        factory, arguments = pickle.loads(made)
        target = factory(*arguments)
    except BaseException as error:  # noqa: BLE001 - reported to the parent, which decides
        _answer(ends.calls, ok=False, value=_portable(error))
        return
    _answer(ends.calls, ok=True, value=None)
    while True:
        try:
            method, call_arguments = ends.calls.recv()
        except EOFError:
            return
        pulse.phase("")
        try:
            ok, value = True, getattr(target, method)(*call_arguments)
        except BaseException as error:  # noqa: BLE001 - any failure of a candidate is that candidate's, SystemExit too
            ok, value = False, _portable(error)
        _answer(ends.calls, ok=ok, value=value)


def _answer(calls: Connection, *, ok: bool, value: Any) -> None:
    try:
        calls.send((ok, value))
    except (BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code
        calls.send((False, _portable(error)))


def _beat(ends: Ends, beat_s: float) -> None:
    """Beat until the parent ends, then end the group."""
    poller = select.poll()
    poller.register(ends.lifeline.fileno(), 0)  # a hang-up is always told
    while not poller.poll(1000 * beat_s):
        ends.pulse.beat()
    os.killpg(0, signal.SIGKILL)


def _die_with_parent(lifeline: Connection) -> None:
    """Have Linux kill this process's group when the lifeline closes, which it does however the parent ends.

    Unlike the parent-death signal this reaches the group, survives the end of the thread that started the child, and
    needs no Python to run. Elsewhere the heart's thread does it.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    file = lifeline.fileno()
    fcntl.fcntl(file, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_ASYNC)


def _portable(error: BaseException) -> TunedexError:
    """``error`` where it is one of ours that arrives as it is, else what tells of it. One whose ``__init__`` takes more
    than a message may be pickled and not be made again."""
    if isinstance(error, TunedexError):
        with contextlib.suppress(Exception):  # its own code
            if type(pickle.loads(pickle.dumps(error))) is type(error):
                return error
    return RemoteError(f"{type(error).__name__}: {one_line(error)[: SETTINGS.worker.message_characters]}")
