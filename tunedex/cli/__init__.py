"""The `tuner` command, one file a command group; rooms are imported inside the commands that need them.

Exit codes: 0 done; 1 done in part or nothing found; 2 bad input or cannot run; 130 interrupted, resumable.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from types import FrameType

INTERRUPTED = 130

#: What asks to end: Ctrl-C, whoever stops a service, and a terminal that closes.
_ENDING = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


def main() -> None:
    """Run the `tuner` command and exit with its code."""
    # From here on, for loading takes seconds. Whoever had them ignored, as nohup, goes on having it so.
    ending = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    asked = count(1)

    def end(number: int, frame: FrameType | None) -> None:
        """Interrupt what runs, once: a second time would only break into the clean-up. The third takes no more of it,
        which loses nothing that was stored."""
        times = next(asked)
        if times == 1:
            raise KeyboardInterrupt
        if times > 2:
            os._exit(INTERRUPTED)

    for number in ending:
        signal.signal(number, end)
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    # All is said: another Ctrl-C would only interrupt the clean-up of imported packages, with their tracebacks.
    for number in ending:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(code)


def _run() -> int:
    try:
        from tunedex.cli.app import run
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in {"typer", "rich"}:
            sys.stderr.write(
                "tuner: the command line is not installed; pip install 'tunedex[tuner]' or 'tunedex[server]', "
                "or '.[tuner]' or '.[server]' in a checkout\n"
            )
            return 2
        raise
    return run(sys.argv[1:])
