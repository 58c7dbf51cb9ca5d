"""What the tests of several rooms share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
