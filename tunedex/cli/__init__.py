"""The `tuner` command, one file a command group; rooms are imported inside the commands that need them.

Exit codes: 0 done; 1 done in part or nothing found; 2 bad input or cannot run; 130 interrupted, resumable.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the `tuner` command and exit with its code."""
    try:
        from tunedex.cli.app import run
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in {"typer", "rich"}:
            sys.stderr.write(
                "tuner: the command line is not installed; pip install 'tunedex[tuner]' or 'tunedex[server]', "
                "or '.[tuner]' or '.[server]' in a checkout\n"
            )
            raise SystemExit(2) from None
        raise
    code = run(sys.argv[1:])
    # All is said: a second Ctrl-C would only interrupt the clean-up of imported packages, with their tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(code)
