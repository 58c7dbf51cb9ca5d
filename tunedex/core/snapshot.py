"""A snapshot, an answer, and the one pure function between them.

Server and client both call `Snapshot.answer`, so the same question gets the same answer online and offline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tunedex.core.canonical import canonical_json
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.limits import NO_LIMITS, Limits
from tunedex.core.problem import Problem
from tunedex.core.row import Row, choose
from tunedex.core.signature import Signature
from tunedex.core.typed import check_types

SNAPSHOT_FORMAT = "tunedex-snapshot"
SNAPSHOT_VERSION = 1


class Match(StrEnum):
    """How an answer was found."""

    EXACT = "exact"
    NEAR = "near"
    FAMILY = "family"
    DEFAULT = "default"


@dataclass(frozen=True)
class Source:
    """Where an answer comes from: the device and environment it was measured on, and the kind of record."""

    kind: str
    device: str | None = None
    environment: str | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one question. Where the match is not exact, ``reason`` says why, field by field."""

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
        }


@dataclass(frozen=True)
class Snapshot:
    """Every answer for one device at one revision.

    ``signatures`` maps a kernel's name to its signature, ``rows`` a problem's key to its rows by rank, and
    ``problems`` the same key to the problem. ``revision`` 0 means that nothing was published yet.
    """

    device: Device
    channel: str
    revision: int
    signatures: Mapping[str, Signature]
    problems: Mapping[str, Problem]
    rows: Mapping[str, Sequence[Row]]

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
        """The best config for ``problem`` within ``limits``: an exact row, else the kernel's default.

        Raises:
            UnknownKernel: the snapshot does not know the problem's kernel.
        """
        signature = self.signature(problem.kernel)
        rows = self.rows.get(problem.key, ())
        chosen = choose(rows, limits)
        if chosen is not None:
            stale = chosen.kernel_version != signature.version
            return Answer(
                config=chosen.config,
                match=Match.EXACT,
                reason=f"measured with kernel version {chosen.kernel_version}, now {signature.version}"
                if stale
                else "",
                source=Source(chosen.source, self.device.key, chosen.environment),
                distance=0.0,
                time_us=chosen.measurement.time_us,
                speedup=chosen.speedup,
                error=chosen.measurement.error,
                channel=self.channel,
                revision=self.revision,
                policy=chosen.measurement.policy.value,
            )
        if rows:
            reason = f"none of the {len(rows)} tuned configs meets {canonical_json(limits.to_dict())}"
        else:
            reason = f"{problem} is not tuned on {self.device.key}"
        return self.default_answer(problem, reason)

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
            "answers": [
                {"problem": self.problems[key].to_dict(), "rows": [row.to_dict() for row in self.rows[key]]}
                for key in sorted(self.problems)
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Snapshot:
        """Read a snapshot document.

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
            problems = [Problem.from_dict(item["problem"]) for item in data["answers"]]
            rows = [tuple(Row.from_dict(row) for row in item["rows"]) for item in data["answers"]]
            found = cls(
                device=Device.from_dict(data["device"]),
                channel=data["channel"],
                revision=data["revision"],
                signatures={signature.kernel: signature for signature in signatures},
                problems={problem.key: problem for problem in problems},
                rows={problem.key: row for problem, row in zip(problems, rows, strict=True)},
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
            for rows in self.rows.values():
                for row in rows:
                    row.check()
        except ValueError as error:
            raise BadInput(f"not a snapshot: {error}", field="snapshot") from error
        return self


def with_signatures(snapshot: Snapshot, signatures: Iterable[Signature]) -> Snapshot:
    """``snapshot`` with every signature of ``signatures`` that it lacks, so that a kernel never tuned has a default."""
    return replace(snapshot, signatures={**{s.kernel: s for s in signatures}, **snapshot.signatures})


def with_installed(snapshot: Snapshot, signatures: Iterable[Signature]) -> Snapshot:
    """``snapshot`` for where the kernels of ``signatures`` run: their defaults are what this code can run, whatever
    version was published, and an answer says of a row that it was measured with another."""
    return replace(snapshot, signatures={**snapshot.signatures, **{s.kernel: s for s in signatures}})
