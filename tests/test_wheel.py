"""The wheel holds everything that runs and nothing else."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
OUTPUT = {"__pycache__", ".mypy_cache", ".ruff_cache"}


def files_under(folder: str) -> set[str]:
    """The files of a folder of the checkout, by their path below it."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and not OUTPUT & set(path.parts))
    return {path.relative_to(ROOT / folder).as_posix() for path in paths}


@pytest.fixture(scope="module")
def contents(wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def names(contents: zipfile.ZipFile) -> set[str]:
    return {name for name in contents.namelist() if not name.endswith("/")}


def metadata(contents: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in contents.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(contents.read(name))


def test_wheel_holds_the_whole_package_and_the_migrations(names: set[str]) -> None:
    package = {f"tunedex/{path}" for path in files_under("tunedex")}
    migrations = {f"tunedex/db/migrations/{path}" for path in files_under("alembic")}
    assert {name for name in names if ".dist-info/" not in name} == package | migrations


@pytest.mark.parametrize(
    "pattern",
    [
        "tunedex/py.typed",
        "tunedex/core/catalog.json",
        "tunedex/kernels/cuda/*.cu",
        "tunedex/api/templates/*.html",
        "tunedex/api/static/*.css",
        "tunedex/db/migrations/env.py",
        "tunedex/db/migrations/script.py.mako",
        "tunedex/db/migrations/versions/0001_*.py",
        "tunedex-*.dist-info/licenses/LICENSE",
        "tunedex-*.dist-info/entry_points.txt",
    ],
)
def test_wheel_holds_what_is_not_imported(names: set[str], pattern: str) -> None:
    assert any(PurePosixPath(name).match(pattern) for name in names)


def test_base_install_is_the_client_alone(contents: zipfile.ZipFile) -> None:
    requirements = metadata(contents).get_all("Requires-Dist") or []
    assert [text for text in requirements if "extra ==" not in text] == ["httpx>=0.27"]


def test_wheel_says_what_it_is(contents: zipfile.ZipFile) -> None:
    head = metadata(contents)
    assert head["License-Expression"] == "Apache-2.0"
    assert head["Requires-Python"] == "<3.14,>=3.11"
    assert {"tuner", "server", "dev"} <= set(head.get_all("Provides-Extra") or [])
    assert str(head.get_payload()).lstrip().startswith("# Tunedex")


def test_wheel_imports_by_itself(wheel: Path) -> None:
    """The client's face loads from the wheel, with neither the checkout nor an installed package in reach."""
    code = "import sys, tunedex; print(tunedex.__file__); print(tunedex.__version__); assert tunedex.lookup"
    result = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    path, version = result.stdout.splitlines()
    assert path.startswith(str(wheel))
    assert wheel.name.startswith(f"tunedex-{version}-")
