"""`tuner profile`: what of somebody's program there are kernels for."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunedex.cli import tuning
from tunedex.cli.output import JsonOption, print_json, print_table, say, writing
from tunedex.core.canonical import finite
from tunedex.core.files import write_whole

if TYPE_CHECKING:
    from tunedex.tuner.profiling.profile import Profile

_DEFAULT_OUT = Path("problems.json")
#: The exit code where a program that succeeds gives nothing to report.
_NOTHING_SEEN = 2


def register(app: typer.Typer) -> None:
    app.command("profile", context_settings={"allow_interspersed_args": False})(profile)


def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="-- PROGRAM ARGUMENTS...", help="The program, as in: -- python script.py")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the problem file.")] = _DEFAULT_OUT,
    as_json: JsonOption = False,
) -> int:
    """Run a Python program and say which of its operators there are kernels for, on what shapes, with what share of
    the time; and write them as a problem file, which `tuner sweep --problems` takes.

    The program runs as without, and its exit code is this command's; 2 where it ends with 0 and ran no torch operator.
    The report goes to standard error; with --json it goes to standard output, and the program's own output to standard
    error.
    """
    from tunedex.kernels.registry import all_kernels
    from tunedex.tuner.problem_file import check_target
    from tunedex.tuner.profiling.profile import profile_of
    from tunedex.tuner.profiling.program import record

    check_target(out)
    kernels = list(all_kernels().values())
    sys.stdout.flush()
    found = profile_of(record(command, kernels, stdout=sys.stderr if as_json else None))
    head = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": tuning.command_line()}
    document = finite({**head, **found.to_dict()})
    try:
        written = _write(out, document, len(found.problems)) if found.device else ""
    finally:  # the report is told in any case
        if as_json:
            print_json(document)
        else:
            _print(found)
    if found.device is None:
        say(f"no torch operator seen: {_why_none(found.exit_code)}; {out} is not written")
        return found.exit_code or _NOTHING_SEEN
    say(written)
    return found.exit_code


def _why_none(exit_code: int) -> str:
    if exit_code:
        return f"the program ended with exit code {exit_code}"
    return "the program runs none, or is no Python that reads PYTHONPATH (-E, -I, -S do not)"


def _write(out: Path, document: Any, count: int) -> str:
    """Write ``document``, unless it would put nothing in the place of a file that is there; what to say of it.

    Raises:
        CannotRun: it cannot be written.
    """
    if not count and out.exists():
        return f"0 problems, so there is nothing to tune; {out} is left as it was"
    with writing(out):
        write_whole(out, (json.dumps(document, indent=1) + "\n").encode())
    how = f"tune them with `tuner sweep --problems {out}`" if count else "nothing to tune"
    return f"{count} problem{'' if count == 1 else 's'} in {out}; {how}"


def _print(found: Profile) -> None:
    """The tables, on standard error, since standard output is the program's."""
    if found.device is None:
        return
    with redirect_stdout(sys.stderr):
        say(f"{found.device.name}: {found.torch_s:.3f} s in torch's operators, {found.wall_s:.3f} s in all")
        if found.problems:
            rows = [
                (
                    *_parts(str(hot.problem)),
                    *_numbers(found, hot.calls, hot.total_ms),
                    _share(found.wall_share(hot.total_ms)),
                )
                for hot in found.problems
            ]
            columns = ["<kernel", "<problem", "calls", "total ms", "share", "of wall"]
            print_table(columns, rows, title="There are kernels for:")
        if found.operators:
            rows = [(str(each), *_numbers(found, each.calls, each.total_ms)) for each in found.operators]
            print_table(["<operator", "calls", "total ms", "share"], rows, title="There are none for:")
    for note in found.notes:
        say(note)


def _parts(problem: str) -> tuple[str, str]:
    name, _, rest = problem.partition(":")
    return name, rest


def _numbers(found: Profile, calls: int, total_ms: float) -> tuple[object, ...]:
    return calls, f"{total_ms:.3f}", _share(found.share(total_ms))


def _share(share: float) -> str:
    return f"{share:.1%}"
