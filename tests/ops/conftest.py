"""A process with no settings, no database and nothing bound yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tunedex
from tunedex import ops


@pytest.fixture(autouse=True)
def _own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TUNEDEX_URL", "TUNEDEX_DB", "TUNEDEX_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tunedex, "_clients", {})
    monkeypatch.setattr(tunedex, "_last", (None, "stable", None))
    ops._plans.clear()
    yield
    ops._plans.clear()
