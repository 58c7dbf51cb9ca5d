"""The face of the package: what it gives out, and that its version is one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import tunedex


def test_every_public_name_is_there_and_documented() -> None:
    for name in tunedex.__all__:
        assert getattr(tunedex, name).__doc__, name
        assert name in dir(tunedex)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tunedex' has no attribute 'nothing'"):
        _ = tunedex.nothing


def test_the_version_is_the_distributions() -> None:
    assert tunedex.__version__ == importlib.metadata.version("tunedex")


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(tunedex.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("first", ["ops", "lookup"])
def test_names_come_in_any_order(first: str) -> None:
    code = f"from tunedex import {first}; import tunedex; tunedex.ops.softmax; tunedex.Answer; tunedex.{first}"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, timeout=120).returncode == 0


def test_importing_warns_of_nothing_and_writes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import tunedex, tunedex.client, tunedex.kernels"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_the_command_is_the_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tunedex", "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "sweep" in done.stdout
