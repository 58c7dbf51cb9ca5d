"""What a kernel's own code does wrong is its problem's fault, and costs a sweep nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tunedex.core.display import one_line
from tunedex.core.errors import TunedexError


class NotOpened(TunedexError):
    """A problem's cost, inputs or references cannot be made on the device; no config is at fault."""


@contextmanager
def laid_on_the_problem(what: str) -> Iterator[None]:
    """Run a kernel's own code; ``what`` says what is not there when it raises.

    Raises:
        NotOpened: it raised, whatever that was.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too
        raise NotOpened(f"{what}: {type(error).__name__}: {one_line(error)}") from error
