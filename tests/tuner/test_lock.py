"""One sweep at a time on a device."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from sweeping import start, sweep, wait_for_trials

from tunedex.core.errors import CannotRun
from tunedex.core.host import cpu
from tunedex.kernels.base import Kernel
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.lock import device_lock, lock_name

LONG = ("--problem", "steps:batch=1,rows=37,cols=64,dtype=float32", "--trials", "100000")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "tunedex.db"


def test_the_lock_is_the_card_s_whatever_its_index_and_name() -> None:
    card = DetectedDevice(cpu(), index=0, uuid="GPU-one")
    renumbered = DetectedDevice(cpu(), index=3, uuid="GPU-one", notes=("seen otherwise",))
    other = DetectedDevice(cpu(), index=0, uuid="GPU-two")
    assert lock_name(card) == lock_name(renumbered) != lock_name(other)


def test_who_comes_second_is_told_by_whom_the_device_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    card = DetectedDevice(cpu(), uuid="GPU-one")
    with device_lock(card):
        with pytest.raises(CannotRun, match=f"cpu is being tuned by process {os.getpid()}: "), device_lock(card):
            raise AssertionError("held twice")
        with device_lock(DetectedDevice(cpu(), uuid="GPU-two")):
            pass
    with device_lock(card):
        pass


@pytest.mark.parametrize("mode", [0o666, 0o644])
def test_another_user_s_file_locks_as_well(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses O_CREAT on it in a sticky folder, and writing where it is not ours to write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    card = DetectedDevice(cpu(), uuid="GPU-one")
    path = tmp_path / f"tunedex-{lock_name(card)}.lock"
    path.write_text("17\n")
    path.chmod(mode)
    opened = os.open

    def strict(file: object, flags: int, *more: int) -> int:
        written = flags & (os.O_RDWR | os.O_WRONLY)
        if file == path and (flags & os.O_CREAT or (written and mode == 0o644)):
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, flags, *more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", strict)
    with device_lock(card), pytest.raises(CannotRun, match="cpu is being tuned by process"), device_lock(card):
        raise AssertionError("held twice")


def test_where_no_lock_can_be_had_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with device_lock(DetectedDevice(cpu(), uuid="GPU-one")):
        pass
    assert "nothing keeps others from tuning cpu meanwhile" in caplog.text


def test_two_sweeps_of_one_device_do_not_run_at_once(steps: Kernel, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_SPACE", json.dumps({"steps": [1, 2, 4], "width": list(range(1, 500)), "order": ["a"]}))
    process = start(db, *LONG)
    wait_for_trials(db, 1)
    second = sweep(db.with_name("other.db"))
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert second.returncode == 2
    assert f"cpu is being tuned by process {process.pid}" in second.stderr
    assert process.returncode == 130
    assert "the same command goes on from there" in stderr
