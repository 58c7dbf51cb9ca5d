"""What continuous integration, the hooks and the Makefile promise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
CI = ROOT / ".ci" / "run"


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    # These tests run under make themselves, whose children announce the folders that they enter.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**outside, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the Makefile and the CI script read, with no environment in it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def hooks() -> list[dict[str, Any]]:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    return repos[0]["hooks"]


def test_ci_script_is_an_executable_that_bash_can_read() -> None:
    assert os.access(CI, os.X_OK)
    assert run("bash", "-n", CI).returncode == 0


def test_ci_builds_the_environment_and_runs_every_test(checkout: Path) -> None:
    log = checkout / "log"
    make = script(checkout / "bin" / "make", f'echo "$@" >> {log}')
    result = run("bash", checkout / ".ci" / "run", cwd=Path("/"), PATH=f"{make.parent}:{os.environ['PATH']}")
    assert result.returncode == 0, result.stderr
    first, second = log.read_text().splitlines()
    assert first.startswith(".venv BASE_PYTHON=python3")
    assert second == "test"


def test_ci_fails_where_make_fails(checkout: Path) -> None:
    make = script(checkout / "bin" / "make", '[ "$1" != test ]')
    result = run("bash", checkout / ".ci" / "run", PATH=f"{make.parent}:{os.environ['PATH']}")
    assert result.returncode != 0
    assert "Passed" not in result.stdout


def test_make_refuses_another_python(checkout: Path) -> None:
    old = script(checkout / "old-python", "exit 1")
    result = run("make", ".venv", f"BASE_PYTHON={old}", cwd=checkout)
    assert result.returncode == 2
    assert f"make: {old} is no Python 3.11, 3.12 or 3.13" in result.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("target", ["sweep", "test", "test-gpu", "lint", "catalog"])
def test_make_sets_up_the_environment_first(checkout: Path, target: str) -> None:
    _, built, work = run("make", "--dry-run", target, cwd=checkout).stdout.partition("touch .venv/installed\n")
    assert built
    assert all(line.startswith(".venv/bin/python -m ") for line in work.splitlines())
    borrowed = run("make", "--dry-run", target, f"PYTHON={sys.executable}", cwd=checkout).stdout
    assert "venv .venv" not in borrowed
    assert sys.executable in borrowed


def test_make_sweep_is_the_quick_sweep() -> None:
    assert run("make", "--dry-run", "sweep").stdout.splitlines()[-1].endswith("-m tunedex sweep --preset quick")


def test_pre_commit_accepts_the_hooks() -> None:
    result = run(TOOLS / "pre-commit", "validate-config", ROOT / ".pre-commit-config.yaml")
    assert result.returncode == 0, result.stdout


def test_hooks_use_only_git_and_the_environment(hooks: list[dict[str, Any]]) -> None:
    for hook in hooks:
        program, *arguments = hook["entry"].split()
        assert hook["language"] == "system"
        assert program == "git" or (TOOLS / Path(program).name).exists(), hook["entry"]
        assert program == "git" or program.startswith(".venv/bin/")
        if arguments[:1] == ["-m"]:
            assert run(TOOLS / Path(program).name, "-m", arguments[1], "--version").returncode == 0


def test_whitespace_hook_finds_a_fault(tmp_path: Path, hooks: list[dict[str, Any]]) -> None:
    entry = next(hook["entry"].split() for hook in hooks if hook["id"] == "whitespace")
    (tmp_path / "clean.txt").write_text("one\n")
    (tmp_path / "faulty.txt").write_text("one \n")
    run("git", "init", "--quiet", cwd=tmp_path)
    run("git", "add", "clean.txt", "faulty.txt", cwd=tmp_path)
    assert run(*entry, "clean.txt", cwd=tmp_path).returncode == 0
    assert run(*entry, "faulty.txt", cwd=tmp_path).returncode != 0


def test_constraints_pin_whatever_the_environment_needs() -> None:
    pins = dict(
        line.split(";")[0].strip().split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    needed = requirements("tunedex", "dev")
    assert {"torch", "fastapi", "pytest"} <= needed
    # A torch built for CUDA brings its libraries in the versions that it names itself.
    ours = {name for name in needed if not name.startswith(("nvidia-", "cuda-"))}
    assert ours <= set(pinned)
    assert {name for name in ours if Version(distribution(name).version).public != pinned[name]} == set()


def requirements(name: str, *extras: str) -> set[str]:
    """Every distribution that ``name`` with ``extras`` needs on this Python and platform, itself excluded."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen = set(waiting)
    while waiting:
        current, wanted = waiting.pop()
        for text in distribution(current).requires or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                needed = canonicalize_name(requirement.name)
                found.add(needed)
                item = (needed, frozenset(requirement.extras))
                if item not in seen:
                    seen.add(item)
                    waiting.append(item)
    return found - {name}
