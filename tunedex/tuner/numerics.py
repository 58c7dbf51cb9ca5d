"""The numerics of a self-test: every default, and a config of every implementation, against the acceptance rule.

The problems are small and of many kinds: aligned and ragged, contiguous and strided, of each dtype, with each
attribute. They are made from a kernel's signature alone, so a new kernel is tested too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.dtypes import DTYPES
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind, Measurement, Resources
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import Signature
from tunedex.kernels.base import Kernel
from tunedex.tuner.compiling import CompilePool, compiled
from tunedex.tuner.failures import SpoiltProblem
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Branch, Space

#: Sizes in the order of a kernel's dimensions, the batch apart: multiples of what hardware likes, and primes.
_ALIGNED = (64, 512, 256)
_RAGGED = (37, 301, 83)
_BATCH = 2

#: Configs of an implementation that may need more than the device has before one is taken that does not.
_TRIES = 8

#: Processes that an implementation may cost before the rest of its cases is left: they would say the same, each at the
#: price of a new process.
_MOST_LOST = 2

#: A best time that every config is much slower than, so that each is timed as briefly as can be.
_ANY_BEST = {True: 1e-6, False: 1e-6}


@dataclass(frozen=True)
class Case:
    """One config to run on one problem; ``others`` are those that may stand in for it where it needs too much."""

    kernel: str
    problem: Problem
    config: Config
    default: bool
    others: tuple[Config, ...] = ()


@dataclass
class Tally:
    """What the cases of one implementation of one kernel came to: ``unrun`` ones were not reached, ``lost`` ones took
    the measuring process with them; ``errors`` are the largest by dtype."""

    problems: set[str] = field(default_factory=set)
    passed: int = 0
    unrun: int = 0
    lost: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: Case, config: Config, outcome: Measurement | Failure) -> None:
        self.problems.add(case.problem.key)
        if isinstance(outcome, Measurement):
            dtype = case.problem.dtype
            self.passed += 1
            self.errors[dtype] = max(outcome.error, self.errors.get(dtype, 0.0))
            return
        self.failed.append(
            {
                "problem": str(case.problem),
                "config": config.to_dict(),
                "default": case.default,
                "kind": outcome.kind.value,
                "detail": outcome.detail,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "problems": len(self.problems),
            "passed": self.passed,
            "unrun": self.unrun,
            "lost": self.lost,
            "errors": dict(sorted(self.errors.items())),
            "failed": self.failed,
        }


def problems_for(signature: Signature) -> list[Problem]:
    """Small problems of ``signature`` in every dtype and shape."""
    shapes = [(_ALIGNED, "contiguous", ALIGNMENT_BYTES), (_RAGGED, "contiguous", ALIGNMENT_BYTES)]
    shapes += [(_RAGGED, layout, ALIGNMENT_BYTES) for layout in signature.layouts if layout != "contiguous"]
    dtypes = list(dict.fromkeys(dtype for operand in signature.operands for dtype in operand.dtypes))
    pairs = [(dtype, shape) for dtype in dtypes for shape in shapes]
    problems: list[Problem] = []
    for number, (dtype, (sizes, layout, alignment)) in enumerate(pairs):
        small = cycle(sizes)
        dims = {d.name: _BATCH if d.name == "batch" else next(small) for d in signature.dimensions}
        attributes = {a.name: a.choices[number % len(a.choices)] for a in signature.attributes}
        kinds = {f"{o.name}_dtype": dtype if dtype in o.dtypes else o.dtypes[0] for o in signature.operands}
        if layout == "strided":  # no more aligned than an element is
            alignment = min(alignment, DTYPES[dtype].bytes)
        try:
            problems.append(
                signature.problem({**dims, **attributes, **kinds, "layout": layout, "alignment": alignment})
            )
        except BadInput:
            continue  # not a problem that the kernel takes
    return list(dict.fromkeys(problems))


def cases_of(kernel: Kernel, device: Device) -> tuple[list[Case], dict[str, str]]:
    """What to run of ``kernel`` on ``device``, problem by problem, and why implementations for it have nothing."""
    cases: list[Case] = []
    refused: dict[str, str] = {}
    for problem in problems_for(kernel.signature):
        space = Space.of(kernel, problem, device)
        if space.default:
            cases.append(Case(kernel.name, problem, space.default, default=True))
        for branch in space.branches:
            first, *others = _plain(branch)
            if first != space.default:
                cases.append(Case(kernel.name, problem, first, default=False, others=tuple(others[: _TRIES - 1])))
        refused |= space.refused
    ran = {case.config.implementation for case in cases}
    here = {i.name for i in kernel.implementations if device.kind in i.kinds}
    return cases, {name: why for name, why in refused.items() if name in here - ran}


def _plain(branch: Branch) -> Sequence[Config]:
    """The configs of ``branch`` that compute in full precision, which the rule accepts with no bound given."""
    return [c for c in branch if c.precision == "ieee"] or branch


class Numerics:
    """Runs cases in a measuring process, which may be lost at any of them; until ``deadline``, a monotonic time."""

    def __init__(self, device: Device, child: ChildProcess, pool: CompilePool | None, deadline: float) -> None:
        self._device = device
        self._child = child
        self._pool = pool
        self._deadline = deadline
        self._opened = ""

    def run(self, cases: Sequence[Case], watch: Callable[[Case], None]) -> dict[str, Tally]:
        """What came of ``cases``, by implementation."""
        tallies = {case.config.implementation: Tally() for case in cases}
        futures = {case: self._compile(case.problem, case.config) for case in cases}
        for case, future in futures.items():
            tally = tallies[case.config.implementation]
            if self._left <= 0 or tally.lost >= _MOST_LOST:
                future.cancel()
                tally.unrun += 1
                continue
            watch(case)
            config, outcome = self._settled(case, future)
            if outcome is None:
                tally.unrun += 1
                continue
            tally.add(case, config, outcome)
            tally.lost += isinstance(outcome, Failure) and not self._child.running
        return tallies

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _settled(self, case: Case, future: Future[Resources | Failure]) -> tuple[Config, Measurement | Failure | None]:
        """The outcome of the case's config, or of the first after it that needs no more than the device has; None where
        the time is over."""
        config, outcome = case.config, self._outcome(case.problem, case.config, future)
        for other in case.others:
            if not (isinstance(outcome, Failure) and outcome.kind is FailureKind.OUT_OF_RESOURCES):
                break
            config, outcome = other, self._outcome(case.problem, other, self._compile(case.problem, other))
        return config, outcome

    def _outcome(
        self, problem: Problem, config: Config, future: Future[Resources | Failure]
    ) -> Measurement | Failure | None:
        resources = future.result()
        if isinstance(resources, Failure):
            return resources
        timeouts = SETTINGS.timeouts
        try:
            if self._opened != problem.key or not self._child.running:
                self._call("open", problem, None, 0.0, timeout_s=timeouts.open_s)
                self._opened = problem.key
            outcome: Measurement | Failure
            outcome, _ = self._call("measure", config, resources, _ANY_BEST, timeout_s=timeouts.trial_s)
        except ProcessFailure as failure:
            if failure.timed_out and self._left <= 0:
                return None
            return Failure(failure.kind, str(failure))
        except RemoteError as error:
            outcome = Failure(FailureKind.CRASH, str(error))
        if isinstance(outcome, SpoiltProblem):
            self._opened = ""
        elif isinstance(outcome, Failure) and outcome.kind is not FailureKind.WRONG_RESULT:
            self._child.close()  # what sticks to the process would be held against the cases that follow
        return outcome

    def _call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        return self._child.call(method, *arguments, timeout_s=max(0.0, min(timeout_s, self._left)))

    def _compile(self, problem: Problem, config: Config) -> Future[Resources | Failure]:
        return compiled(self._pool, problem, config)
