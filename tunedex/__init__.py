"""Tunedex answers which configuration of a fused kernel is the fastest on the GPU that a process runs on.

    tunedex.connect("http://127.0.0.1:8421")                  a client of a server, a snapshot file or a database
    tunedex.lookup("softmax", 4096, 4096, dtype="bfloat16")   the config to run; never raises, never blocks
    tunedex.ops.softmax(x)                                    the kernel itself, run with that config
    tunedex.refresh()                                         newer answers from now on, where the source has any

Importing this loads none of torch, triton, SQLAlchemy and httpx; each is loaded by what needs it.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tunedex import ops
    from tunedex.client import Client, Status
    from tunedex.client.cache import Stamped
    from tunedex.core.config import Config
    from tunedex.core.device import Device
    from tunedex.core.errors import TunedexError
    from tunedex.core.problem import Problem
    from tunedex.core.recommend import Recommendation
    from tunedex.core.snapshot import Answer, Match

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Client",
    "Config",
    "Device",
    "Match",
    "Recommendation",
    "Status",
    "TunedexError",
    "connect",
    "default_client",
    "lookup",
    "ops",
    "recommend",
    "refresh",
    "status",
]

_FROM = {
    "Answer": "tunedex.core.snapshot",
    "Client": "tunedex.client",
    "Config": "tunedex.core.config",
    "Device": "tunedex.core.device",
    "Match": "tunedex.core.snapshot",
    "Recommendation": "tunedex.core.recommend",
    "Status": "tunedex.client",
    "TunedexError": "tunedex.core.errors",
}


def connect(
    source: str | os.PathLike[str] | None = None,
    *,
    device: Device | str | None = None,
    channel: str = "stable",
    revision: int | None = None,
) -> Client:
    """A client that answers from ``source``, and from now on `lookup` and `ops` of this process do as well.

    Starts from the last snapshot on disk and waits for a server two seconds at most. A source that is away or
    damaged is no error: the client answers with defaults, and `Client.status` says why.

    Args:
        source: the address of a server (``http://...``), a snapshot file, or a database (a URL or a file). None: what
            TUNEDEX_URL names, else TUNEDEX_DB, else your own database if there is one, else the defaults alone.
        device: a `Device` or its key; None for the one that this process runs on.
        channel: ``stable`` or ``candidate``.
        revision: a revision to hold fast to, so that all ranks of a job answer alike; None for TUNEDEX_PIN, else the
            newest.

    A setting that is wrong is no error either: it is not followed, which is logged once and stands in the status.

    Raises:
        BadInput: an argument can be no source, device, channel or revision, or names a file that is not there.
    """
    global _last
    client = _open(source, device, channel, revision)
    with _connecting:
        _last = source, channel, revision
        _clients.clear()
        _clients[None] = _clients[client.device.key] = client
    return client


def lookup(kernel: str, /, *dims: Any, device: Device | str | None = None, **parameters: Any) -> Answer:
    """The config to run ``kernel`` with on ``device``, from the `default_client`; see `Client.lookup`. Never raises."""
    return default_client(device).lookup(kernel, *dims, **parameters)


def recommend(kernel: str, /, *dims: Any, device: Device | str | None = None, **parameters: Any) -> Recommendation:
    """The batch to run ``kernel`` at on ``device``, for whoever may choose, and the config for it, from the
    `default_client`; see `Client.recommend`. ``objective="throughput"`` asks for the most items a second. Never raises.
    """
    return default_client(device).recommend(kernel, *dims, **parameters)


def refresh(wait_s: float | None = None) -> bool:
    """Ask the source what is new, for every device that `lookup`, `recommend` and `ops` of this process have answered
    for, the default one first, and report misses; whether anything else answers from now on.

    Waits at most ``wait_s`` seconds a device (None: what suits the source). Never raises: where the source does not
    answer, what answered before goes on answering, and `status` says why.
    """
    changed = [client.refresh(wait_s) for client in dict.fromkeys((default_client(), *_clients.values()))]
    return any(changed)


def status(device: Device | str | None = None) -> Status:
    """What the `default_client` of ``device`` holds, from where, and what waits to be reported. Never raises."""
    return default_client(device).status()


def default_client(device: Device | str | None = None) -> Client:
    """The client that answers for ``device`` in this process: of the source that was connected last, else of what
    the settings name; None is the device of the last connection, else of this process. Never raises: where the
    settings are wrong, it answers with defaults, and its status says why."""
    try:
        return _clients[device]  # type: ignore[index]  # a Device is none of its keys, and takes the way below
    except (KeyError, TypeError):
        with _connecting:
            return _connect_default(device)


def _connect_default(device: Device | str | None) -> Client:
    import logging

    from tunedex.client import connection

    key = getattr(device, "key", device)
    key = key if isinstance(key, str) else None
    if (key is not None or device is None) and key in _clients:
        return _clients[key]
    source, channel, revision = _last
    try:
        client = _open(source, device, channel, revision)
        # A device has one client, by whichever of its names it is asked for: one snapshot, one count of misses.
        if client.device.kind != "named" and len(_clients) < _MOST_CLIENTS:
            client = _clients.setdefault(client.device.key, client)
    except Exception as error:  # noqa: BLE001 - a lookup never raises, whatever the settings say
        logging.getLogger("tunedex").warning("no answers but defaults: %s", error)
        client = connection.without_source(device, str(error))
    if (key is not None or device is None) and len(_clients) < _MOST_CLIENTS:
        _clients[key] = client
    return client


def _open(source: Any, device: Device | str | None, channel: str, revision: int | None) -> Client:
    from tunedex.client import connection

    return connection.connect(source, device=device, channel=channel, revision=revision, open_database=_DatabaseSource)


class _DatabaseSource:
    """A database, opened for each call, so that no connection is shared over a fork. Has the face of
    `tunedex.client.connection.DatabaseSource`."""

    origin = "database"

    def __init__(self, url: str) -> None:
        from tunedex.client.settings import SETTINGS
        from tunedex.core.display import without_password
        from tunedex.core.errors import MissingExtra

        try:
            from tunedex.db import database_url, embedded_path
        except ModuleNotFoundError as error:
            how = "pip install 'tunedex[db]', or '.[db]' in a checkout"
            raise MissingExtra(f"{error.name} is not installed; {how}") from error
        self.url = database_url(url)
        self.name = without_password(self.url)
        self.file = embedded_path(self.url)
        self.cached = self.file is None
        self.wait_s = SETTINGS.network_s if self.cached else SETTINGS.database_s

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        from tunedex.client.cache import Stamped
        from tunedex.db import open_store

        with open_store(self.url, create=False) as store:
            stamp = store.stamp(device, channel=channel, revision=revision)
            if etag == stamp:
                return None
            return Stamped(store.snapshot(device, channel=channel, revision=revision).checked(), stamp)

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        from tunedex.db import open_store

        with open_store(self.url, create=False) as store:
            store.add_misses(device, misses)
        return True


#: What was connected last: source, channel, revision; and its clients by device key, None being `lookup`'s own.
_last: tuple[Any, str, int | None] = (None, "stable", None)
_clients: dict[str | None, Client] = {}

#: A host has few devices; more keys than this are callers' mistakes, whose clients are not worth keeping.
_MOST_CLIENTS = 64
_connecting = threading.RLock()


def _after_fork() -> None:
    """In a child: another thread of the parent may have been connecting."""
    global _connecting
    _connecting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("tunedex.ops")
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    raise AttributeError(f"module 'tunedex' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
