"""`tuner selftest` as it is run on this machine's CPU."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunedex.cli.app import run
from tunedex.core.canonical import canonical_json
from tunedex.core.device import Device, Environment
from tunedex.core.host import cpu
from tunedex.kernels.registry import all_kernels, builtin_kernels
from tunedex.tuner.devices import detect
from tunedex.tuner.findings import Finding, Status
from tunedex.tuner.lock import device_lock
from tunedex.tuner.selftest import Check, SelfTest, SelfTestReport

PLANTED = Path(__file__).parents[1] / "tuner" / "planted"


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user whose name is in a home folder, with installed kernels that fail and tell the folder."""
    home = tmp_path / "janedoe"
    home.mkdir()
    late = home / "late"
    late.write_text("raise")
    monkeypatch.syspath_prepend(str(PLANTED))
    for name, value in {
        "PYTHONPATH": str(PLANTED),
        "PLANTED_LATE": str(late),
        "HOME": str(home),
        "LOGNAME": "janedoe",
        "USER": "janedoe",
        "HF_TOKEN": "sesame-open",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    all_kernels.cache_clear()
    yield home
    all_kernels.cache_clear()
    for name in ("planted", "planted_faults", "planted_steps", "planted_triton"):
        sys.modules.pop(name, None)


def test_the_whole_test_survives_a_faulty_kernel_and_names_nobody(
    faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["selftest", "--device", "cpu", "--json"]) == 1
    said = capsys.readouterr()
    path = faulty / f"tunedex-selftest-{cpu().key}.json"
    text = path.read_text()
    document = json.loads(text)
    assert text == canonical_json(document) + "\n"
    assert json.loads(said.out) == document
    assert str(path.name) in said.err

    assert (document["format"], document["version"]) == ("tunedex-selftest", 1)
    assert Device.from_dict(document["device"]) == cpu()
    checks = {check["name"]: check for check in document["checks"]}
    named = {"identity", "limits", "environment", "ceilings", "state", "timer repeats", "timer clocks", "timer caches"}
    assert named | {"sweep"} <= set(checks)
    # What other work on the machine makes of the timer is not this test's to say.
    sure = {name for name in checks if not name.startswith("timer")}
    failed = {name for name in sure if checks[name]["status"] == "failed"}
    assert failed == {"numerics planted numba", "numerics planted library", "numerics faults library"}
    assert checks["numerics planted numba"]["detail"].endswith("crash, RuntimeError: planted in <path>; 1 not run")
    for name in builtin_kernels():
        facts = checks[f"numerics {name} numba"]["facts"]
        assert facts["passed"] > 0
        assert facts["errors"]["float32"] < 1e-6
    assert checks["sweep"]["facts"]["config"] is not None
    assert sum(document["counts"].values()) == len(document["checks"])
    assert not any(word in text for word in ("janedoe", str(faulty), "sesame", "PLANTED_LATE", "hostname"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--device", "cpu", "--out", "none/b.json"], "there is no folder none"),
        (["--device", "cpu", "--out", "notes.json"], "notes.json is there and is no bundle"),
        (["--device", "cpu", "--out", "/dev/full"], "/dev/full is no regular file"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.json").write_text("{}")
    assert run(["selftest", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.strip().splitlines()
    assert words in line
    assert Path("notes.json").read_text() == "{}"


def test_it_does_not_run_beside_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bundle.json"
    with device_lock(detect("cpu")[0]):
        assert run(["selftest", "--device", "cpu", "--out", str(out)]) == 2
    assert "is being tuned by process" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_a_disk_that_is_full_costs_nobody_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    check = Check("identity", Finding(Status.OK, "it is itself"), 0.1)
    report = SelfTestReport(cpu(), Environment(), [check])
    monkeypatch.setattr(SelfTest, "run", lambda _: report)
    monkeypatch.setattr(os, "open", full)
    out = tmp_path / "bundle.json"
    assert run(["selftest", "--device", "cpu", "--out", str(out), *flag]) == 2
    said = capsys.readouterr()
    assert "it is itself" in said.out
    assert said.err.splitlines()[-1] == f"tuner: {out} cannot be written: No space left on device"
