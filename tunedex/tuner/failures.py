"""Which kind of failure a candidate's exception is, and what it leaves behind in the measuring process."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tunedex.core.display import one_line
from tunedex.core.measurement import Failure, FailureKind
from tunedex.kernels.base import CompileError, OverLimit
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.timing import CaptureError

#: Failures after which the measuring process is not to be trusted: what sticks to it would be held against others.
STICKY = frozenset({FailureKind.ILLEGAL_ACCESS, FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.OOM})

#: What a message says, in lower case, of the kind of failure that it reports.
_TELLTALES = (
    ("launch timed out", FailureKind.TIMEOUT),
    ("launch_timeout", FailureKind.TIMEOUT),
    ("illegal memory access", FailureKind.ILLEGAL_ACCESS),
    ("illegal_address", FailureKind.ILLEGAL_ACCESS),
    ("misaligned", FailureKind.ILLEGAL_ACCESS),
    ("out of memory", FailureKind.OOM),
    ("out_of_memory", FailureKind.OOM),
    ("can't allocate memory", FailureKind.OOM),
    ("too many resources", FailureKind.OUT_OF_RESOURCES),
    ("out_of_resources", FailureKind.OUT_OF_RESOURCES),
)


@dataclass(frozen=True)
class SpoiltProblem(Failure):
    """A failure after which the problem is to be opened anew: memory was written that the config has no business with,
    and what else lies there is not known."""


@dataclass(frozen=True)
class SpoiltProcess(Failure):
    """A failure, of whatever kind, after which another process goes on."""


def spoils_process(outcome: object) -> bool:
    """Whether the process that gave ``outcome`` is not to be trusted any more."""
    return isinstance(outcome, SpoiltProcess) or (isinstance(outcome, Failure) and outcome.kind in STICKY)


def failure_of(error: Exception, *, otherwise: FailureKind = FailureKind.CRASH) -> Failure:
    """The kind of failure that an exception of a candidate is, with its words in one line; ``otherwise`` is the kind of
    one that says nothing of it."""
    text = one_line(error)[: SETTINGS.worker.message_characters]
    name = type(error).__name__
    if isinstance(error, OverLimit) or name == "OutOfResources":
        kind = FailureKind.OUT_OF_RESOURCES
    elif isinstance(error, CompileError) or name in {"CompilationError", "PTXASError", "CompileTimeAssertionFailure"}:
        kind = FailureKind.COMPILE_ERROR
    elif isinstance(error, CaptureError):
        kind = FailureKind.INVALID_TIMING
    elif isinstance(error, torch.OutOfMemoryError | MemoryError):
        kind = FailureKind.OOM
    else:
        kind = next((kind for words, kind in _TELLTALES if words in text.lower()), otherwise)
    # A capture that breaks may leave torch's allocator in it, with memory that is never freed.
    made = SpoiltProcess if isinstance(error, CaptureError) else Failure
    return made(kind, f"{name}: {text}" if text else name)
