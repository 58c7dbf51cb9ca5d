"""What a sweep is asked to do, how far it is, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunedex.core.device import Environment
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.search.search import Ended
from tunedex.tuner.search.sources import Source
from tunedex.tuner.spent import Spent


@dataclass(frozen=True)
class Effort:
    """How much a sweep does: ``trials`` a problem (None: no bound), ``budget_s`` seconds a device (None: no bound).

    A task of several batches has the trials of all of them, and its search divides them: so the default and the library
    call of each batch leave it as many as they leave a single problem.

    A search starts from what the database knows of other shapes, devices and environments unless it is ``cold``, and
    ``stops`` where it expects less of more trials than times differ by chance; both are the sampler `auto`'s.
    """

    trials: int | None
    budget_s: float | None
    sampler: Sampler = Sampler.AUTO
    seed: int = 0
    cold: bool = False
    stops: bool = True


@dataclass(frozen=True)
class Progress:
    """Where a sweep is, for whoever watches: ``done`` of ``total`` trials of ``task``, in a final of that problem.

    ``best_us`` is the best time that searching has found so far, in microseconds: of a call, or ``per_item`` where the
    batches of a task are searched together. A final, which times anew, has none. ``device`` is the selector of the one
    that is at it.
    """

    task: str
    done: int
    total: int
    best_us: float | None
    phase: str
    device: str = ""
    per_item: bool = False


@dataclass(frozen=True)
class Searched:
    """How far the search of ``task`` came: ``tried`` of the ``wanted`` configs, those of all of its batches; of them
    ``wanted_here`` are one problem's even share.

    ``known_alone`` is whether nothing but the default, the library's calls and what is published was tried where there
    was more. ``ended`` says what ended it, and ``sources`` what it started from besides.
    """

    task: str
    tried: int
    wanted: int
    wanted_here: int
    known_alone: bool = False
    ended: Ended = Ended.TRIALS
    sources: Sequence[Source] = ()

    @property
    def lines(self) -> list[str]:
        """What the search started from, and that it ended early because it was done; a line each."""
        lines = []
        if self.sources:
            nearest, configs = self.sources[0], sum(len(source.times) for source in self.sources)
            lines.append(
                f"{self.task}: started from {configs} configs tried elsewhere, the nearest of {nearest.tried.problem} "
                f"on {nearest.tried.device}, {nearest.distance:.1f} doublings away"
            )
        if self.ended is Ended.GAIN:
            tried = f"{self.tried} of {self.wanted} configs tried"
            lines.append(f"{self.task}: {tried}; nothing faster is expected of the others")
        return lines

    @property
    def shortfall(self) -> str:
        """What kept the search from being one, in words; "" where nothing did."""
        alone = "the default, the library's calls and what is published"
        if self.ended is Ended.BUDGET:
            told = f"{self.tried} of {self.wanted} configs tried{f', {alone} alone' if self.known_alone else ''}"
            return f"{told}: the budget was spent; the same command goes on"
        return f"all {self.tried} trials went to {alone}; more --trials search" if self.known_alone else ""


@dataclass(frozen=True)
class Result:
    """What one problem came to.

    ``best`` is what is served within ``max_error``, ``own`` the best config that is not the library's, ``library``
    the best that is. ``fault`` says why a problem could not be measured at all. Times in microseconds, of one final,
    which was ``contended`` where it was disturbed; ``disturbed_by`` says what by. ``searched`` says how far its task's
    search came, None where there was none.
    """

    problem: Problem
    kernel_version: str
    max_error: float | None
    trials: int
    failures: Mapping[str, int]
    best: Row | None = None
    own: Row | None = None
    library: Row | None = None
    revision: int = 0
    fault: str = ""
    contended: bool = False
    disturbed_by: str = ""
    searched: Searched | None = None

    @property
    def asked(self) -> tuple[Problem, float | None]:
        """What a sweep was asked for: two tasks may share a problem and bear unlike errors."""
        return self.problem, self.max_error

    @property
    def default_us(self) -> float | None:
        return self.best.default_us if self.best else None

    @property
    def library_us(self) -> float | None:
        return self.library.measurement.time_us if self.library else None

    def to_dict(self) -> dict[str, Any]:
        best, own = self.best, self.own
        return {
            "kernel": self.problem.kernel,
            "problem": self.problem.to_dict(),
            "version": self.kernel_version,
            "max_error": self.max_error,
            "default_us": self.default_us,
            "library_us": self.library_us,
            "best_us": best.measurement.time_us if best else None,
            "speedup": best.speedup if best else None,
            "roofline_share": best.roofline_share if best else None,
            "error": best.measurement.error if best else None,
            "policy": best.measurement.policy.value if best else None,
            "config": best.config.to_dict() if best else None,
            "own_us": own.measurement.time_us if own else None,
            "own_config": own.config.to_dict() if own else None,
            "trials": self.trials,
            "trials_wanted": self.searched.wanted_here if self.searched else None,
            "ended": self.searched.ended.value if self.searched else None,
            "started_from": [source.to_dict() for source in self.searched.sources] if self.searched else [],
            "failures": dict(self.failures),
            "contended": self.contended,
            "disturbed_by": self.disturbed_by,
            "fault": self.fault,
        }


@dataclass
class Report:
    """What a sweep of one device came to, or of several alike under one key.

    ``lost`` says of each of them that failed on the way why; the others have done its part. ``left`` tasks were not
    reached.
    """

    detected: DetectedDevice
    environment: Environment
    revision: int = 0
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False
    new_trials: int = 0
    spent: Spent = field(default_factory=Spent)
    lost: list[str] = field(default_factory=list)
    left: int = 0

    @property
    def complete(self) -> bool:
        return not self.interrupted and not self.left and all(result.best for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.detected.device.to_dict(),
            "environment": self.environment.to_dict(),
            "revision": self.revision,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "left": self.left,
            "lost": list(self.lost),
            "results": [result.to_dict() for result in self.results],
            "spent": self.spent.to_dict(),
        }
