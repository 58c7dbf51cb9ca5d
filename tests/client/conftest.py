"""A process with settings of its own, as a user's whose folders are empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tunedex
from tunedex.client import device as client_device
from tunedex.client.cache import _log_once
from tunedex.client.connection import _warn


@pytest.fixture(autouse=True)
def _own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings and memory as in a fresh process of a user whose folders are empty."""
    for name in ("TUNEDEX_URL", "TUNEDEX_DB", "TUNEDEX_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tunedex, "_clients", {})
    monkeypatch.setattr(tunedex, "_last", (None, "stable", None))
    _log_once.cache_clear()
    _warn.cache_clear()
    client_device._from_driver.cache_clear()
    yield
    client_device._from_driver.cache_clear()
