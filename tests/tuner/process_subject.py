"""What the tests of child processes have run in one: everything that goes wrong there, on demand."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from tunedex.core.errors import BadInput, TunedexError
from tunedex.tuner.process import ChildProcess, phase


class Untold(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Particular(TunedexError):
    """One of ours that pickle cannot make again from its message alone."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Unreadable:
    """What can be sent and not be received."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


class Subject:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def pids(self) -> tuple[int, int]:
        return os.getpid(), os.getpgrp()

    def fail(self) -> None:
        raise ValueError("of no use")

    def fail_untold(self) -> None:
        raise Untold

    def refuse(self) -> None:
        raise BadInput("rows=0 is zero", field="rows")

    def refuse_particularly(self) -> None:
        raise Particular("of no use", 3)

    def unreadable(self) -> Unreadable:
        return Unreadable()

    def hang_deaf(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.hang()

    def leave_softly(self, code: int) -> None:
        sys.exit(code)

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def leave(self) -> None:
        sys.stderr.write("last words\n\n")
        sys.stderr.flush()
        os._exit(0)

    def leave_unprintably(self) -> None:
        os.write(2, b"\x1b[31merror\0 in /tmp/\xff.cu\r\n \t\n")
        os._exit(3)

    def abort(self) -> None:
        phase("folding")
        os.abort()

    def kill_unusually(self) -> None:
        os.kill(os.getpid(), 40)

    def hang(self) -> None:
        phase("spinning")
        while True:
            pass

    def hang_with_lock(self) -> None:
        """Sleep in native code that keeps Python's lock."""
        phase("native")
        ctypes.PyDLL(None).sleep(600)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def unsendable(self) -> threading.Lock:
        return threading.Lock()

    def flood(self, count: int) -> int:
        chunk = b"x" * 99_999 + b"\n"
        for n in range(count // len(chunk)):
            os.write(1 + n % 2, chunk)
        return count

    def eat(self) -> None:
        eaten = []
        while True:
            eaten.append(bytearray(b"x" * 2**24))
            time.sleep(0.02)

    def start_another(self) -> int:
        """A process such as a compiler that is started from here; its number."""
        return subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL).pid

    def start_another_and_abort(self) -> None:
        """Leave a copy behind that has every pipe open."""
        if os.fork() == 0:
            time.sleep(600)
        os.abort()


class Unmakable:
    def __init__(self) -> None:
        raise ValueError("cannot be made")


class Vanishing:
    """Goes with its definition: a child cannot find it."""


def parent_of_one(last_call: str) -> None:
    """A program that starts a child and another from it, says their numbers, and then makes ``last_call``."""
    child = ChildProcess(Subject, 1, start_s=60)
    numbers = (child.call("pids", timeout_s=10)[0], child.call("start_another", timeout_s=10))
    sys.stdout.write(f"{numbers[0]} {numbers[1]}\n")
    sys.stdout.flush()
    child.call(last_call, timeout_s=600)


if __name__ == "__main__":
    parent_of_one(sys.argv[1])
