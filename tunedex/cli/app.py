"""The command tree, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tunedex.cli import (
    curve,
    db,
    devices,
    export,
    kernels,
    lookup,
    profile,
    promote,
    recommend,
    replay,
    selftest,
    serve,
    sweep,
    verify,
)
from tunedex.cli.output import help_alone
from tunedex.core.errors import TunedexError

app = typer.Typer(
    name="tuner",
    help="Find the fastest correct config of every kernel on this hardware, remember it, and answer whoever asks.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Options of `tuner` itself."""
    if version:
        import tunedex

        sys.stdout.write(f"{tunedex.__version__}\n")
        raise typer.Exit
    help_alone(context)


for group in (
    devices,
    kernels,
    sweep,
    verify,
    selftest,
    profile,
    curve,
    replay,
    export,
    lookup,
    recommend,
    serve,
    promote,
    db,
):
    group.register(app)

#: The distribution that an import name belongs to, by the extra that installs it.
_EXTRAS = {
    "tuner": {"torch", "triton", "optuna", "numba", "numpy", "pynvml", "cuda"},
    "server": {"fastapi", "uvicorn", "jinja2", "prometheus_client", "starlette", "swagger_ui_bundle"},
    "db": {"sqlalchemy", "alembic", "psycopg"},
}


#: Typer carries its own copy of click from 0.20 on, so the class is found from one that typer exports.
_UsageProblem: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def run(arguments: list[str]) -> int:
    """Run ``tuner`` with ``arguments`` and return its exit code; prints one line for an error."""
    try:
        code = app(arguments, prog_name="tuner", standalone_mode=False)
        sys.stdout.flush()
    except TunedexError as error:
        return _fail(str(error))
    except typer.Exit as error:
        return error.exit_code
    except _UsageProblem as error:
        return _fail(error.format_message())
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.filename is None:  # standard output: what is left in it must not be written again at exit
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except ModuleNotFoundError as error:
        root = (error.name or "").split(".")[0]
        extra = next((extra for extra, names in _EXTRAS.items() if root in names), None)
        if extra is None:
            raise
        return _fail(f"{root} is not installed; pip install 'tunedex[{extra}]', or '.[{extra}]' in a checkout")
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    sys.stderr.write(f"tuner: {' '.join(message.split())}\n")
    return 2
