"""A process with settings of its own, as a user's whose folders are empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tunedex.client import device as client_device
from tunedex.client.cache import _log_once
from tunedex.client.connection import _warn


@pytest.fixture(autouse=True)
def _own_process(fresh_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    _log_once.cache_clear()
    _warn.cache_clear()
    client_device._from_driver.cache_clear()
    yield
    client_device._from_driver.cache_clear()
