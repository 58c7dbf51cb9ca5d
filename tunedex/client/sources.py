"""Where snapshots come from: a server, a snapshot file, or nothing but the built-in kernels.

A database is a source too; `tunedex.connect` brings it, since this room knows none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tunedex.client.cache import Stamped, read_snapshot
from tunedex.client.settings import SETTINGS
from tunedex.core.display import without_password
from tunedex.core.errors import BadInput, CannotRun
from tunedex.core.files import read_bounded
from tunedex.core.problem import Problem

#: Refusals that another try may not meet; any other 4xx is an answer for good.
_LATER = frozenset({408, 425, 429})


class Source(Protocol):
    """Gives snapshots and takes misses. Holds no connection between calls, so that a fork shares none.

    ``name`` is shown to people and holds no password; ``wait_s`` is how long a client waits for a call; ``cached``
    says whether its last snapshot is kept on disk; ``origin`` is the word for it in a client's status.
    """

    name: str
    wait_s: float
    cached: bool
    origin: str

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        """The snapshot of ``device``, with its entity tag; None where it is still the one of ``etag``.

        Raises:
            TunedexError: there is none, or it cannot be had now.
        """

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        """Report how often each problem was asked for in vain; False where this source does not take them.

        Raises:
            TunedexError: it cannot be reported now.
        """


class HttpSource:
    """A server as `tuner serve` runs it.

    Raises:
        BadInput: ``url`` is no address.
    """

    cached = True
    origin = "server"

    def __init__(self, url: str, *, wait_s: float = SETTINGS.network_s) -> None:
        try:
            parts = urlsplit(url)
            right = bool(parts.hostname) and parts.port != 0 and not set(url) & set(" \t\r\n")
        except ValueError:  # brackets that do not close, or a port that is no number
            right = False
        if not right:
            raise BadInput(
                f"source {without_password(url)!r} is not an address; one looks like http://127.0.0.1:8421",
                field="source",
            )
        self.url = url.rstrip("/")
        self.name = without_password(self.url)
        self.wait_s = wait_s

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        parameters: dict[str, str | int] = {"device": device, "channel": channel}
        if revision is not None:
            parameters["revision"] = revision
        status, headers, body = self._call(
            "GET", "/v1/snapshot", params=parameters, headers={"If-None-Match": etag} if etag else {}
        )
        if status == 304 and etag:
            return None
        if status != 200:
            raise CannotRun(f"{self.name} answers {status}{_detail(body)}")
        return Stamped(read_snapshot(body), headers.get("etag", ""))

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        document = {
            "device": device,
            "misses": [{**problem.to_dict(), "count": count} for problem, count in misses.items()],
        }
        status, _, body = self._call("POST", "/v1/misses", json=document)
        if status in _LATER or status >= 500:
            raise CannotRun(f"{self.name} answers {status}{_detail(body)}")
        return status < 400

    def _call(self, method: str, path: str, **request: Any) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of a request that ends within about ``wait_s``.

        Raises:
            CannotRun: there is no answer, or too large a one.
        """
        import httpx

        deadline = time.monotonic() + self.wait_s
        body = bytearray()
        try:
            with (
                httpx.Client(timeout=self.wait_s, verify=self.url.startswith("https:")) as http,
                http.stream(method, self.url + path, **request) as reply,
            ):
                for chunk in reply.iter_bytes():
                    body += chunk
                    if len(body) > SETTINGS.snapshot_bytes:
                        raise CannotRun(f"{self.name} sends more than {SETTINGS.snapshot_bytes} bytes")
                    if time.monotonic() > deadline:
                        raise CannotRun(f"{self.name} does not end its answer within {self.wait_s:g} s")
                return reply.status_code, reply.headers, bytes(body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise CannotRun(f"{self.name} does not answer: {error or type(error).__name__}") from error


class FileSource:
    """A snapshot in a file, as `/v1/snapshot` sends it."""

    cached = False
    origin = "file"
    wait_s = SETTINGS.database_s

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        try:
            found = self.path.stat()
            now = f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}"
            if now == etag:
                return None
            return Stamped(read_snapshot(read_bounded(self.path, SETTINGS.snapshot_bytes)), now)
        except OSError as error:
            raise CannotRun(f"{self.name} cannot be read: {error.strerror or error}") from error

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        return False


class BuiltinSource:
    """No source at all: the built-in kernels and their defaults, because of ``trouble`` if there is any."""

    name = "no source"
    origin = "built-in"
    wait_s = SETTINGS.database_s
    cached = False

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    def fetch(self, device: str, channel: str, revision: int | None, etag: str) -> Stamped | None:
        if self.trouble:
            raise CannotRun(self.trouble)
        return None

    def report(self, device: str, misses: Mapping[Problem, int]) -> bool:
        return False


def _detail(body: bytes) -> str:
    """What a problem document says, as ``: text``."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    detail = document.get("detail") if isinstance(document, dict) else None
    return f": {detail}" if isinstance(detail, str) else ""
