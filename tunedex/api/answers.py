"""Snapshots held in memory, so that a lookup touches no database.

A snapshot is held per (device, channel, revision asked for). It answers for `Settings.fresh_s` without any query;
then its stamp is asked for, which costs little, and only a snapshot of another stamp is read in full. Requests that
find the same snapshot stale wait for one refresh between them. Where the database does not answer, a snapshot
that is held goes on answering: what it says was true at the revision it names.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from anyio.to_thread import run_sync

from tunedex.api.metrics import Metrics
from tunedex.api.settings import Settings
from tunedex.core.canonical import canonical_json
from tunedex.core.channel import Channel, check_channel
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, DatabaseError
from tunedex.core.signature import Signature
from tunedex.core.snapshot import Snapshot, with_signatures
from tunedex.db import Store

MAX_KEY = 200

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Held:
    """A snapshot in memory with its stamp in the store, and the forms in which it is sent; each is made once, when
    first asked for."""

    snapshot: Snapshot
    stamp: str

    @cached_property
    def tag(self) -> str:
        """The entity tag without quotes: the SHA-256 of the body, since no number tells what is in it."""
        return hashlib.sha256(self.body).hexdigest()

    @cached_property
    def body(self) -> bytes:
        return canonical_json(self.snapshot.to_dict()).encode()

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.body, compresslevel=6, mtime=0)


@dataclass(frozen=True)
class _Key:
    device: str
    channel: str
    revision: int | None


@dataclass(frozen=True)
class _Entry:
    held: Held
    checked_at: float


class Answers:
    """The snapshots of one store. Its coroutines run on one event loop; the store's queries run in threads."""

    def __init__(
        self,
        store: Store,
        builtin: Mapping[str, Signature],
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._builtin = builtin
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._loading: dict[_Key, asyncio.Task[Held]] = {}
        self._signatures: tuple[float, Mapping[str, Signature]] | None = None

    async def snapshot(self, device: str, channel: str = Channel.STABLE, revision: int | None = None) -> Held:
        """The snapshot of ``device`` on ``channel``, at ``revision`` or at the one that the channel points to.

        Raises:
            BadInput: ``device`` is no device key, or ``channel`` no channel.
            UnknownRevision: ``revision`` is newer than any published.
            DatabaseError: the database does not answer, and no such snapshot is held.
        """
        key = _Key(device, channel, revision)
        entry = self._entries.get(key)
        if entry is not None and self._fresh(entry.checked_at):
            self._entries.move_to_end(key)
            return entry.held
        task = self._loading.get(key)
        if task is None:
            check_device(device)
            check_channel(channel)
            task = asyncio.create_task(self._load(key, entry.held if entry else None))
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        # A caller that goes away does not take the refresh from the others who wait for it.
        return await asyncio.shield(task)

    async def signatures(self) -> Mapping[str, Signature]:
        """Every kernel's signature: the built-in ones and those that the store knows, whose version comes first.

        Raises:
            DatabaseError: the database does not answer.
        """
        return await run_sync(self._read_signatures)

    def _loaded(self, key: _Key, task: asyncio.Task[Held]) -> None:
        del self._loading[key]
        if not task.cancelled():
            task.exception()  # Taken even where every waiter has gone, else asyncio reports it as never retrieved.

    async def _load(self, key: _Key, held: Held | None) -> Held:
        try:
            fresh = await run_sync(self._read, key, held)
        except DatabaseError as error:
            if held is None:
                raise
            _log.warning("the snapshot of %s at revision %d is held: %s", key.device, held.snapshot.revision, error)
            self._metrics.stale()
            fresh = held
        self._entries[key] = _Entry(fresh, self._clock())
        self._entries.move_to_end(key)
        while len(self._entries) > self._settings.held_snapshots:
            self._entries.popitem(last=False)
        return fresh

    def _read(self, key: _Key, held: Held | None) -> Held:
        """Read the snapshot where ``held`` is not it any more. Runs in a thread."""
        # The stamp comes first: what is published in between is then noticed by the next look.
        stamp = self._store.stamp(key.device, channel=key.channel, revision=key.revision)
        if held is not None and held.stamp == stamp:
            return held
        snapshot = self._store.snapshot(key.device, channel=key.channel, revision=key.revision)
        return Held(with_signatures(snapshot, self._builtin.values()), stamp)

    def _read_signatures(self) -> Mapping[str, Signature]:
        if self._signatures is None or not self._fresh(self._signatures[0]):
            merged = {**self._builtin, **{signature.kernel: signature for signature in self._store.kernels()}}
            self._signatures = (self._clock(), merged)
        return self._signatures[1]

    def _fresh(self, checked_at: float) -> bool:
        return self._clock() - checked_at < self._settings.fresh_s


def check_device(key: str) -> Device:
    """The device that ``key`` describes.

    Raises:
        BadInput: it is no device key, or another spelling of one.
    """
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise BadInput(f"device is not a key of 1 to {MAX_KEY} printable ASCII characters", field="device")
    return Device.from_key(key)
