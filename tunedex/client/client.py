"""A client: one device's snapshot in memory, the calls it has answered, and the misses it has to report."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tunedex.client.cache import Slot, Stamped
from tunedex.client.settings import SETTINGS
from tunedex.client.sources import Source
from tunedex.core.candidates import Candidates, Match
from tunedex.core.channel import Channel
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, CannotRun, TunedexError
from tunedex.core.limits import NO_LIMITS, Limits
from tunedex.core.problem import Problem
from tunedex.core.recommend import Recommendation, read_item, recommend
from tunedex.core.signature import Signature
from tunedex.core.snapshot import Answer, Snapshot, with_installed
from tunedex.core.snapshot import Source as Origin

log = logging.getLogger("tunedex.client")

T = TypeVar("T")


@dataclass(frozen=True)
class Status:
    """What a client holds: ``origin`` is ``server``, ``database``, ``file``, ``cache`` or ``built-in``; ``reason``
    says why it is not what the source has now, or which setting is not followed, "" where all is as it should be;
    ``misses`` wait to be reported."""

    source: str
    device: str
    channel: str
    revision: int
    origin: str
    reason: str
    problems: int
    misses: int


@dataclass(frozen=True)
class _Held:
    """A snapshot and the calls answered from it; replaced as one, so that no call sees half of each."""

    snapshot: Snapshot
    origin: str
    etag: str = ""
    reason: str = ""
    memo: dict[Any, Answer] = field(default_factory=dict)

    def with_reason(self, reason: str) -> _Held:
        """This with another reason, and no call answered: those that were may have named the former one."""
        return self if self.reason == reason else replace(self, reason=reason, memo={})


class Client:
    """Answers which config to run on one device. Thread-safe, and safe over fork and spawn.

    A lookup never raises and never blocks: it reads the snapshot in memory. Only `refresh`, `report_misses` and
    `close` speak to the source. Made by `tunedex.connect`.

    Args:
        source: where snapshots come from.
        device: the device to answer for; None where it is not known, and then only defaults are served.
        channel: ``stable`` or ``candidate``.
        revision: a revision to hold fast to; None for the channel's newest.
        signatures: the kernels that run here; what the source says of them is not followed.
        trouble: why ``device`` is not known.
        ignored: which setting is not followed, and why.
    """

    def __init__(
        self,
        source: Source,
        device: Device | None,
        *,
        channel: str = Channel.STABLE,
        revision: int | None = None,
        signatures: Sequence[Signature] = (),
        trouble: str = "",
        ignored: str = "",
    ) -> None:
        self.source = source
        self.device = device or Device("named", "unknown", 0, 0)
        self.channel = channel
        self.pin = revision
        self._ignored = ignored
        self._known = device is not None
        self._signatures = tuple(signatures)
        self._misses: dict[Problem, int] = {}
        self._closed = False
        self._renew_locks()
        empty = Snapshot(self.device, channel, 0, {s.kernel: s for s in self._signatures}, {}, {})
        self._held = _Held(empty, "built-in", reason=trouble)
        _clients.add(self)

    @property
    def snapshot(self) -> Snapshot:
        """What answers now; another object after a refresh that brought something new."""
        return self._held.snapshot

    @property
    def revision(self) -> int:
        """The revision that answers now; 0 where nothing was published or nothing could be had."""
        return self._held.snapshot.revision

    def lookup(self, kernel: str, /, *dims: Any, **parameters: Any) -> Answer:
        """The config to run ``kernel`` with.

        ``dims`` are its dimensions in order, without the batch; everything else goes by name: dimensions,
        attributes, ``dtype``, ``x_dtype``, ``layout``, ``alignment``, and the limits ``objective``, ``max_error``,
        ``max_latency_us``, ``max_memory``, ``policy``, ``same_bits``. A call answered before costs one look-up in a
        dictionary. Never raises: what cannot be answered gets the default config, or none, with the reason.
        """
        try:
            return self._held.memo[kernel, dims, tuple(parameters.items())]
        except Exception:  # noqa: BLE001 - not answered before, or an argument that cannot even be hashed
            return self._first(kernel, dims, parameters)

    def recommend(self, kernel: str, /, *dims: Any, **parameters: Any) -> Recommendation:
        """The batch to run ``kernel`` at, and the config for it, of the batches that were tuned.

        Takes what `lookup` takes but the batch: the problem is that of one item. Never raises: where no tuned batch
        serves, it is one item with the default config, or none, with the reason.
        """
        held = self._held
        try:
            signature = held.snapshot.signature(kernel)
            item = read_item(signature, _named(signature, dims, parameters))
            found = recommend(held.snapshot, item.problem, item.limits)
            return replace(found, answer=self._noted(held, item.problem, found.answer))
        except Exception as error:  # noqa: BLE001 - whatever the arguments are, asking breaks nobody's process
            return Recommendation(1, self._unanswered(held, kernel, error))

    def answer(self, problem: Problem, limits: Limits = NO_LIMITS) -> Answer:
        """The config for ``problem`` within ``limits``; never raises. Nothing is remembered of the call but a miss."""
        held = self._held
        try:
            return self._answer(held, problem, limits)
        except TunedexError as error:
            return self._unanswered(held, problem.kernel, error)

    def candidates(self, problem: Problem, limits: Limits = NO_LIMITS) -> Candidates:
        """The rows that may answer for ``problem`` within ``limits``, what `answer` gives first, and how they were
        found; where none are exact, that is a miss. Never raises."""
        snapshot = self._held.snapshot
        try:
            found = snapshot.candidates(problem, limits)
        except TunedexError as error:
            return Candidates(Match.DEFAULT, snapshot.device.key, snapshot.revision, str(error))
        if found.match is not Match.EXACT and not problem.empty:
            with self._lock:
                self._count(problem, 1)
        return found

    def refresh(self, wait_s: float | None = None) -> bool:
        """Ask the source what is new, and report misses; whether another snapshot answers from now on.

        Waits at most ``wait_s`` seconds (None: what suits the source). Never raises: where the source does not
        answer, the snapshot in memory goes on answering, and `status` says why.
        """
        with self._refreshing:
            changed = self._fetch(self.source.wait_s if wait_s is None else wait_s)
        self.report_misses(wait_s)
        return changed

    def report_misses(self, wait_s: float | None = None) -> int:
        """Report the problems that were asked for in vain, and how many were: all of them, in as many reports as it
        takes, for at most ``wait_s`` seconds (None: what suits the source). Those that cannot be reported now are kept.
        Never raises."""
        if not self._known:
            return 0
        deadline = time.monotonic() + (self.source.wait_s if wait_s is None else wait_s)
        reported = 0
        with self._lock:
            waiting, self._misses = self._misses, {}
        try:
            while waiting and (left := deadline - time.monotonic()) > 0:
                taken = dict(itertools.islice(waiting.items(), SETTINGS.reported_misses))
                if within(left, functools.partial(self.source.report, self.device.key, taken)):
                    reported += len(taken)
                for problem in taken:
                    del waiting[problem]
        except TunedexError as error:
            log.info("misses are not reported: %s", error)
        finally:
            with self._lock:
                for problem, count in waiting.items():
                    self._count(problem, count)
        return reported

    def status(self) -> Status:
        """What this client holds and from where."""
        held = self._held
        return Status(
            source=self.source.name,
            device=self.device.key,
            channel=self.channel,
            revision=held.snapshot.revision,
            origin=held.origin,
            reason="; ".join(filter(None, (self._ignored, held.reason))),
            problems=len(held.snapshot.problems),
            misses=len(self._misses),
        )

    def close(self) -> None:
        """Report the misses, waiting half a second at most. The client goes on answering from memory."""
        if not self._closed:
            self._closed = True
            self.report_misses(min(self.source.wait_s, SETTINGS.exit_s))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin with the last snapshot on disk, then with what the source has now. Never raises."""
        if not self._known:
            return
        if self.source.cached and (stamped := self._slot.read()):
            with contextlib.suppress(CannotRun):  # a file of another device, put there by hand
                self._take(stamped, "cache")
        with self._refreshing:  # a pinned one too: its number names other answers in a database that was made anew
            self._fetch(self.source.wait_s)

    @property
    def _slot(self) -> Slot:
        return Slot(self.source.name, self.device.key, self.channel, self.pin)

    def _fetch(self, wait_s: float) -> bool:
        """Ask the source; whether the snapshot is another one now."""
        if not self._known:
            return False
        held = self._held
        try:
            stamped = within(wait_s, lambda: self.source.fetch(self.device.key, self.channel, self.pin, held.etag))
            if stamped is None:
                known = replace(held, origin=self.source.origin) if held.origin == "cache" else held
                self._held = known.with_reason("")
                return False
            self._take(stamped, self.source.origin)
        except TunedexError as error:
            log.info("%s", error)
            self._held = held.with_reason(str(error))
            return False
        if self.source.cached:
            self._slot.write(stamped)
        return True

    def _take(self, stamped: Stamped, origin: str) -> None:
        """Answer from ``stamped`` from now on.

        Raises:
            CannotRun: it is another device's, or of another revision than the pinned one.
        """
        given = stamped.snapshot
        if given.device.key != self.device.key:
            raise CannotRun(f"{self.source.name} holds answers for {given.device.key}, not for {self.device.key}")
        if self.pin is not None and given.revision != self.pin:
            raise CannotRun(f"{self.source.name} holds revision {given.revision}, not {self.pin}")
        snapshot = with_installed(replace(given, device=self.device), self._signatures)
        self._held = _Held(snapshot, origin, stamped.etag)

    def _first(self, kernel: str, dims: tuple[Any, ...], parameters: dict[str, Any]) -> Answer:
        """Answer a call that was not answered before, and remember the answer where it is one."""
        held = self._held
        try:
            signature = held.snapshot.signature(kernel)
            limits, rest = Limits.apart(_named(signature, dims, parameters))
            answer = self._answer(held, signature.problem(rest), limits)
            key = kernel, dims, tuple(parameters.items())
            hash(key)
        except Exception as error:  # noqa: BLE001 - whatever the arguments are, asking breaks nobody's process
            return self._unanswered(held, kernel, error)
        with self._lock:
            while len(held.memo) >= SETTINGS.memo_entries:
                del held.memo[next(iter(held.memo))]
            held.memo[key] = answer
        return answer

    def _answer(self, held: _Held, problem: Problem, limits: Limits) -> Answer:
        return self._noted(held, problem, held.snapshot.answer(problem, limits))

    def _noted(self, held: _Held, problem: Problem, answer: Answer) -> Answer:
        """``answer`` with what this client has to say besides; a miss is counted."""
        if problem.empty:
            return replace(answer, match=Match.DEFAULT, reason=f"{problem}: nothing to compute")
        if answer.match is Match.EXACT:
            return answer
        with self._lock:
            self._count(problem, 1)
        return replace(answer, reason=f"{answer.reason}; {held.reason}") if held.reason else answer

    def _count(self, problem: Problem, count: int) -> None:
        """Count a miss; a new problem is left out where the dictionary is full. The caller holds the lock."""
        if problem in self._misses or len(self._misses) < SETTINGS.held_misses:
            self._misses[problem] = self._misses.get(problem, 0) + count

    def _unanswered(self, held: _Held, kernel: str, error: Exception) -> Answer:
        """The answer to a question that cannot be read: the kernel's default for any problem, if it is known."""
        wrong = str(error) if isinstance(error, TunedexError) else f"{type(error).__name__} while reading the arguments"
        snapshot = held.snapshot
        signature = snapshot.signatures.get(kernel) if isinstance(kernel, str) else None
        config = signature.default_for_any(snapshot.device) if signature else None
        return Answer(
            config=config,
            match=Match.DEFAULT,
            reason=f"{wrong}; {held.reason}" if held.reason else wrong,
            source=Origin("default"),
            channel=snapshot.channel,
            revision=snapshot.revision,
        )

    def _renew_locks(self) -> None:
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()

    def _after_fork(self) -> None:
        """In a child: another thread of the parent may have held a lock, and the parent reports its own misses."""
        self._renew_locks()
        self._misses = {}


def within(wait_s: float, call: Callable[[], T]) -> T:
    """What ``call`` returns, if it does within ``wait_s`` seconds; later it ends unheard in its thread.

    Raises:
        CannotRun: it does not, or no thread can be started.
        TunedexError: what ``call`` raises.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="tunedex-client")
    try:
        thread.start()
    except RuntimeError as error:
        raise CannotRun(f"no thread can be started: {error}") from error
    thread.join(wait_s)
    if results:
        return results[0]
    if not errors:
        raise CannotRun(f"no answer within {wait_s:g} s")
    if isinstance(errors[0], TunedexError):
        raise errors[0]
    raise CannotRun(f"{type(errors[0]).__name__}: {errors[0]}") from errors[0]


def _named(signature: Signature, dims: tuple[Any, ...], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument by name.

    Raises:
        BadInput: there are more positional ones than dimensions, or one is given twice.
    """
    names = [dimension.name for dimension in signature.dimensions if dimension.name != "batch"]
    if len(dims) > len(names):
        raise BadInput(f"{signature.kernel} has {len(names)} dimensions ({', '.join(names)}), not {len(dims)}")
    if twice := [name for name, _ in zip(names, dims, strict=False) if name in parameters]:
        raise BadInput(f"{twice[0]} is given twice", field=twice[0])
    return {**dict(zip(names, dims, strict=False)), **parameters}


#: Every client of this process that is still in use.
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _renew_all() -> None:
    for client in list(_clients):
        client._after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
