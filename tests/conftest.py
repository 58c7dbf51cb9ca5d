"""What the tests of several rooms share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tunedex

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several test processes a temporary folder of its own: a device's lock lies there, and what one
    process tests of it is not to wait for the other. The process that hands out the tests removes them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        folder = _folders(os.getppid()) / worker
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    else:
        config.add_cleanup(lambda: shutil.rmtree(_folders(os.getpid()), ignore_errors=True))


def _folders(pid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"tunedex-tests-{pid}"


@pytest.fixture
def fresh_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings and memory of `tunedex` as in a fresh process of a user whose folders are empty."""
    for name in ("TUNEDEX_URL", "TUNEDEX_DB", "TUNEDEX_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tunedex, "_clients", {})
    monkeypatch.setattr(tunedex, "_last", (None, "stable", None))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tunedex's wheel, built once from this checkout by the build backend that is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder))
    result = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    (built,) = folder.glob("tunedex-*.whl")
    return built


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finals that this process holds count, whatever else runs on the machine."""
    _finals_seen(monkeypatch, contended=None)


@pytest.fixture
def busy() -> Callable[[], AbstractContextManager[None]]:
    """Makes finals that this process holds within disturbed."""

    @contextmanager
    def disturbed() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            _finals_seen(monkeypatch, contended=True)
            yield

    return disturbed


def _finals_seen(monkeypatch: pytest.MonkeyPatch, *, contended: bool | None) -> None:
    """Have finals that this process holds find that the device is shared, or not, and its clocks steady."""
    from tunedex.tuner.nvml import Sample
    from tunedex.tuner.worker import FinalTimes, Worker

    final = Worker.final

    def held(worker: Worker, *arguments: Any) -> FinalTimes | None:
        taken = final(worker, *arguments)
        return replace(taken, states=(Sample(contended=contended),)) if taken else None

    monkeypatch.setattr(Worker, "final", held)
