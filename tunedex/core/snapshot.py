"""A snapshot, an answer, and the one pure function between them.

Server and client both call `Snapshot.answer`, so the same question gets the same answer online and offline.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tunedex.core.candidates import Candidates, Holding, candidates
from tunedex.core.candidates import Match as Match
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.family import Relative
from tunedex.core.limits import NO_LIMITS, Limits
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import Signature
from tunedex.core.typed import check_types

SNAPSHOT_FORMAT = "tunedex-snapshot"
SNAPSHOT_VERSION = 1


@dataclass(frozen=True)
class Source:
    """Where an answer comes from: the device and environment it was measured on, and the kind of record."""

    kind: str
    device: str | None = None
    environment: str | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one question. Where the match is not exact, ``reason`` says why, field by field.

    ``distance`` is in doublings: how far what was measured lies from what was asked. ``expected_loss`` is the share by
    which a near config may be slower than the best; None where nothing shows it. Times and the error are those of the
    very problem on the very device, or None.
    """

    config: Config | None
    match: Match
    reason: str
    source: Source
    distance: float | None = None
    time_us: float | None = None
    speedup: float | None = None
    error: float | None = None
    channel: str | None = None
    revision: int | None = None
    policy: str | None = None
    expected_loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict() if self.config else None,
            "match": self.match.value,
            "distance": self.distance,
            "reason": self.reason,
            "source": {
                "device": self.source.device,
                "environment": self.source.environment,
                "kind": self.source.kind,
            },
            "time_us": self.time_us,
            "speedup": self.speedup,
            "error": self.error,
            "channel": self.channel,
            "revision": self.revision,
            "policy": self.policy,
            "expected_loss": self.expected_loss,
        }


@dataclass(frozen=True)
class Snapshot:
    """Every answer for one device at one revision.

    ``signatures`` maps a kernel's name to its signature, ``rows`` a problem's key to its rows by rank, and
    ``problems`` the same key to the problem. ``relatives`` are the nearest tuned devices of the family, which answer
    what is not tuned here. ``revision`` 0 means that nothing was published yet.
    """

    device: Device
    channel: str
    revision: int
    signatures: Mapping[str, Signature]
    problems: Mapping[str, Problem]
    rows: Mapping[str, Sequence[Row]]
    relatives: Sequence[Relative] = ()

    def signature(self, kernel: str) -> Signature:
        """The signature of ``kernel``.

        Raises:
            UnknownKernel: the snapshot has none of that name.
        """
        try:
            return self.signatures[kernel]
        except KeyError:
            known = ", ".join(sorted(self.signatures)) or "none"
            raise UnknownKernel(f"kernel {kernel!r} is unknown; known are {known}", field="kernel") from None

    def answer(self, problem: Problem, limits: Limits = NO_LIMITS) -> Answer:
        """The best config for ``problem`` within ``limits``: the first of its `candidates`, else the kernel's default.

        Raises:
            UnknownKernel: the snapshot does not know the problem's kernel.
        """
        found = self.candidates(problem, limits)
        if not found.rows:
            return self.default_answer(problem, found.reason)
        row = found.rows[0]
        answer = Answer(
            config=row.config,
            match=found.match,
            reason=found.reason,
            source=Source(row.source, found.device, row.environment),
            distance=found.distance,
            channel=self.channel,
            revision=found.revision,
            expected_loss=found.expected_loss,
        )
        if not found.timed:
            return answer
        return replace(
            answer,
            time_us=row.measurement.time_us,
            speedup=row.speedup,
            error=row.measurement.error,
            policy=row.measurement.policy.value,
        )

    def candidates(self, problem: Problem, limits: Limits = NO_LIMITS) -> Candidates:
        """The rows that may answer for ``problem`` within ``limits``, the best first, and how they were found.

        Raises:
            UnknownKernel: the snapshot does not know the problem's kernel.
        """
        own, *relatives = self._holdings
        return candidates(own, relatives, self.signature(problem.kernel), problem, limits)

    @cached_property
    def _holdings(self) -> tuple[Holding, ...]:
        """What is tuned on this device, then on each of its relatives."""
        own = Holding(self.device, self.revision, self.signatures, self.problems, self.rows)
        others = (Holding(r.device, r.revision, self.signatures, r.problems, r.rows) for r in self.relatives)
        return own, *others

    def default_answer(self, problem: Problem, reason: str) -> Answer:
        """The kernel's default for ``problem``, where nothing that was measured serves, for ``reason``.

        Raises:
            UnknownKernel: the snapshot does not know the problem's kernel.
        """
        signature = self.signature(problem.kernel)
        config = signature.default(problem, self.device)
        if config is None:
            reason = f"{reason}; {signature.kernel} has no default for {self.device.key}"
        return Answer(config, Match.DEFAULT, reason, Source("default"), channel=self.channel, revision=self.revision)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": SNAPSHOT_FORMAT,
            "version": SNAPSHOT_VERSION,
            "device": self.device.to_dict(),
            "channel": self.channel,
            "revision": self.revision,
            "kernels": [self.signatures[name].to_dict() for name in sorted(self.signatures)],
            "answers": _answers_document(self.problems, self.rows),
            "relatives": [
                {
                    "device": relative.device.to_dict(),
                    "revision": relative.revision,
                    "answers": _answers_document(relative.problems, relative.rows),
                }
                for relative in self.relatives
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Snapshot:
        """Read a snapshot document; one without relatives, as earlier code wrote it, has none.

        Raises:
            BadInput: it is not one, or of a newer version than this code reads.
        """
        try:
            if data["format"] != SNAPSHOT_FORMAT:
                raise BadInput(f"format {data['format']!r} is not {SNAPSHOT_FORMAT!r}", field="format")
            if data["version"] != SNAPSHOT_VERSION:
                raise BadInput(
                    f"snapshot version {data['version']} is not {SNAPSHOT_VERSION}, which this Tunedex reads",
                    field="version",
                )
            signatures = [Signature.from_dict(kernel) for kernel in data["kernels"]]
            problems, rows = _read_answers(data["answers"])
            relatives = tuple(
                Relative(Device.from_dict(each["device"]), each["revision"], *_read_answers(each["answers"]))
                for each in data.get("relatives", ())
            )
            found = cls(
                device=Device.from_dict(data["device"]),
                channel=data["channel"],
                revision=data["revision"],
                signatures={signature.kernel: signature for signature in signatures},
                problems=problems,
                rows=rows,
                relatives=relatives,
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"not a snapshot: {type(error).__name__}: {error}", field="snapshot") from error
        return found.checked()

    def checked(self) -> Snapshot:
        """This snapshot, read from somebody's document or database: to answer from it never fails.

        Raises:
            BadInput: a field anywhere in it is not of its type, or no value of its kind (see `Row.check`).
        """
        try:
            check_types(self)
            for held in (self.rows, *(relative.rows for relative in self.relatives)):
                for row in itertools.chain.from_iterable(held.values()):
                    row.check()
        except ValueError as error:
            raise BadInput(f"not a snapshot: {error}", field="snapshot") from error
        return self


def _answers_document(problems: Mapping[str, Problem], rows: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    return [
        {"problem": problems[key].to_dict(), "rows": [row.to_dict() for row in rows[key]]} for key in sorted(problems)
    ]


def _read_answers(items: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Problem], dict[str, Sequence[Row]]]:
    problems = [Problem.from_dict(item["problem"]) for item in items]
    rows = [tuple(Row.from_dict(row) for row in item["rows"]) for item in items]
    keys = [problem.key for problem in problems]
    return dict(zip(keys, problems, strict=True)), dict(zip(keys, rows, strict=True))


def with_signatures(snapshot: Snapshot, signatures: Iterable[Signature]) -> Snapshot:
    """``snapshot`` with every signature of ``signatures`` that it lacks, so that a kernel never tuned has a default."""
    return replace(snapshot, signatures={**{s.kernel: s for s in signatures}, **snapshot.signatures})


def with_installed(snapshot: Snapshot, signatures: Iterable[Signature]) -> Snapshot:
    """``snapshot`` for where the kernels of ``signatures`` run: their defaults are what this code can run, whatever
    version was published, and an answer says of a row that it was measured with another."""
    return replace(snapshot, signatures={**snapshot.signatures, **{s.kernel: s for s in signatures}})
