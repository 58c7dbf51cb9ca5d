"""A pipe that takes any amount of output and keeps the end of it."""

from __future__ import annotations

import contextlib
import os
import threading
from multiprocessing.connection import Connection, Pipe

from tunedex.core.display import one_line

_CHUNK_BYTES = 2**16
#: What is still read once nobody should be writing.
_REST_BYTES = 2**20
#: Parts what was written before from what comes after.
_MARK = b"\n\0\n"


class Tail:
    """Reads the pipe in a thread of its own, so that whoever writes is never held up; ``size`` bytes are kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._reader, self.writer = Pipe(duplex=False)
        self._kept = b""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._drain, args=(self._reader,), name="tail", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there are too many
            self._reader.close()
            self.writer.close()
            raise

    def mark(self) -> None:
        """Begin anew: what has been written until now is not told."""
        os.write(self.writer.fileno(), _MARK)

    def end(self) -> str:
        """Stop reading and give the last line that is not empty since the last mark; called when the writers have
        ended."""
        if not self._ending.is_set():
            self._ending.set()
            # Wakes the thread. Where the pipe is full it is awake, and this must not wait for it.
            os.set_blocking(self.writer.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                os.write(self.writer.fileno(), b"\n")
            self._thread.join()
            self._reader.close()
            self.writer.close()
        lines = self._kept.rpartition(_MARK)[2].decode(errors="replace").split("\n")
        return one_line(next((line for line in reversed(lines) if line.strip()), ""))

    def _drain(self, reader: Connection) -> None:
        file, rest = reader.fileno(), _REST_BYTES
        while rest > 0:
            try:
                data = os.read(file, _CHUNK_BYTES)
            except BlockingIOError:
                return
            self._kept = (self._kept + data)[-self._size :]
            if self._ending.is_set():
                # Something may have escaped the killing and write on.
                os.set_blocking(file, False)
                rest -= len(data)
