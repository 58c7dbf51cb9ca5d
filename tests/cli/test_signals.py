"""What asks the command to end, from its first moment on: Ctrl-C, SIGTERM and SIGHUP do the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: A kernel that takes long to load, and as long to clean up; files say how far it is.
MODULE = """
import pathlib, time

here = pathlib.Path(__file__).parent

def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.02)

try:
    (here / "loading").touch()
    wait_for("never")
finally:
    (here / "cleaning").touch()
    wait_for("clean")
    (here / "cleaned").touch()
"""


@pytest.fixture
def loading(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a sweep that loads its kernels, by the command before it if one is given."""
    (tmp_path / "slow_kernel.py").write_text(MODULE)
    package = tmp_path / "slow_kernel-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-kernel\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[tunedex.kernels]\nslow = slow_kernel:KERNEL\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    command = [sys.executable, "-m", "tunedex", "sweep", "--device", "cpu", "--db", str(tmp_path / "tunedex.db")]

    def start(*before: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*before, *command],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        wait_for(tmp_path / "loading")
        return process

    return start


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_still_loads_is_interrupted(
    loading: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "clean").touch()
    process = loading()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_a_second_ctrl_c_breaks_into_no_clean_up_and_a_third_ends_it(
    loading: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    for times in (2, 3):
        process = loading()
        process.send_signal(signal.SIGINT)
        wait_for(tmp_path / "cleaning")
        process.send_signal(signal.SIGINT)
        if times == 2:
            time.sleep(0.2)  # the one that is ignored must have arrived before the clean-up may end
            (tmp_path / "clean").touch()
        else:
            process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        assert stderr.count("Traceback") == 0
        assert (tmp_path / "cleaned").exists() is (times == 2)
        for name in ("loading", "cleaning", "clean", "cleaned"):
            (tmp_path / name).unlink(missing_ok=True)


def test_a_signal_that_is_ignored_stays_so(loading: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "clean").touch()
    process = loading("nohup")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
