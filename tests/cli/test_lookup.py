"""`tuner lookup`: the same answers as the server's, and one line for bad input."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunedex.cli.app import run
from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config
from tunedex.core.device import GIB, Device, Environment
from tunedex.core.measurement import Measurement, Policy
from tunedex.core.row import Row
from tunedex.db import open_store
from tunedex.tuner.devices import DetectedDevice

DEVICE = Device.from_key("cpu-some_model-8c-avx2")
ENVIRONMENT = Environment(torch="2.13.0", python="3.11")
ASKED = ["softmax", "rows=1024", "cols=4096", "dtype=float32", "--device", DEVICE.key]


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A database with two revisions for one softmax: 64 and then 32 rows a block."""
    path = str(tmp_path / "tunedex.db")
    softmax = next(signature for signature in builtin_signatures() if signature.kernel == "softmax")
    problem = softmax.problem({"rows": 1024, "cols": 4096, "dtype": "float32"})
    measurement = Measurement(250.0, 240.0, 260.0, 30, Policy.EAGER_COLD, 1e-7, True, "bits")
    row = Row(0, Config("numba", {"block": 64}), measurement, softmax.version, ENVIRONMENT.key, default_us=500.0)
    with open_store(path) as store:
        store.register_device(DEVICE)
        store.register_environment(ENVIRONMENT)
        store.publish(DEVICE.key, {problem: [row]})
        store.publish(DEVICE.key, {problem: [replace(row, config=Config("numba", {"block": 32}))]})
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, absent: str = "") -> dict[str, Any]:
    assert run(["lookup", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == (f"there is no database {absent} yet, so the answer is the kernel's default\n" if absent else "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_tuned_problem(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, *ASKED, "--db", database) == {
        "config": {"implementation": "numba", "block": 32},
        "match": "exact",
        "distance": 0,
        "reason": "",
        "source": {"device": DEVICE.key, "environment": ENVIRONMENT.key, "kind": "local"},
        "time_us": 250,
        "speedup": 2,
        "error": 1e-7,
        "channel": "stable",
        "revision": 2,
        "policy": "eager-cold",
        "expected_loss": None,
    }


def test_a_pinned_revision_and_a_channel(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, *ASKED, "--db", database, "--revision", "1")["config"]["block"] == 64
    with open_store(database) as store:
        store.rollback(1)
    assert answer(capsys, *ASKED, "--db", database)["config"]["block"] == 64
    assert answer(capsys, *ASKED, "--db", database, "--channel", "candidate")["config"]["block"] == 32


def test_an_objective_is_a_parameter_or_an_option(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*ASKED, "--db", database]
    for objective, code in (("error", 0), ("luck", 2)):
        assert run(["lookup", *asked, f"objective={objective}"]) == code
        as_parameter = capsys.readouterr()
        assert run(["lookup", *asked, "--objective", objective]) == code
        assert capsys.readouterr() == as_parameter
    assert run(["lookup", *asked, "objective=error", "--objective", "error"]) == 2
    assert "objective is given twice" in capsys.readouterr().err


def test_limits_take_part(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *ASKED, "max_latency_us=1", "--db", database)

    assert (found["match"], "max_latency_us" in found["reason"]) == ("default", True)


@pytest.mark.parametrize("signature", builtin_signatures(), ids=lambda signature: signature.kernel)
@pytest.mark.parametrize("device", ["auto", "cpu", "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"])
def test_a_built_in_kernel_has_a_default_on_a_fresh_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signature: Any, device: str
) -> None:
    dims = [f"{d.name}=512" for d in signature.dimensions if d.default is None]
    asked = [signature.kernel, *dims, f"dtype={signature.operands[0].dtypes[0]}", "--device", device]

    new = str(tmp_path / "new.db")
    found = answer(capsys, *asked, "--db", new, absent=new)

    assert (found["match"], found["revision"], found["source"]["kind"]) == ("default", 0, "default")
    assert found["config"]["implementation"]
    assert list(tmp_path.iterdir()) == []


def test_the_same_answer_without_a_database_and_with_an_empty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "new.db")
    without = answer(capsys, *ASKED, "--db", path, absent=path)
    open_store(path).close()
    assert answer(capsys, *ASKED, "--db", path) == without


def test_for_people_it_prints_config_and_provenance(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lookup", *ASKED, "--db", database]) == 0

    out = capsys.readouterr().out
    assert out.startswith("problem ")
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert lines["config"].strip() == "numba block=32"
    assert lines["time"].strip() == "250 us"
    assert lines["speed-up"].startswith("2.00x")
    assert lines["published"].strip() == "revision 2 on stable"
    assert lines["environment"].strip() == f"torch 2.13.0, Python 3.11 ({ENVIRONMENT.key})"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "rows=1"], "kernel 'nope' is unknown"),
        (["softmax", "rows=1024", "dtype=float32"], "needs cols"),
        (["softmax", "rows=0", "cols=8", "dtype=float32"], "nothing to compute"),
        (["softmax", "rows=-1", "cols=8", "dtype=float32"], "rows=-1 is negative"),
        (["softmax", "rows=x", "cols=8", "dtype=float32"], "rows=x is not a whole number"),
        (["softmax", "rows=9223372036854775808", "cols=8", "dtype=float32"], "over 2^63"),
        (["softmax", "rows=8", "cols=8", "dtype=float17"], "dtype 'float17' is unknown"),
        (["softmax", "rows=8", "cols=8"], "needs dtype"),
        (["softmax", "rows", "cols=8"], "'rows' is not NAME=VALUE"),
        (["softmax", "rows=8", "rows=9", "cols=8"], "rows is given twice"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "depth=2"], "no parameter 'depth'"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "max_error=-1"], "max_error"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "--channel", "beta"], "channel 'beta' is unknown"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "--revision", "7"], "revision 7 is unknown"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "--revision", "-1"], "--revision -1"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "--device", "my-gpu"], "not a device key"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "--device", "gpu"], "known are auto, all, cuda, cuda:N or"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "--device", "gpu"], "or a device's key"),
        (["softmax", "rows=8", "cols=8", "dtype=float32", "same_bits=zz"], "same_bits=zz is not the hash"),
        (
            ["softmax", "rows=8", "cols=8", "dtype=float32", "max_error=\u0665"],
            "max_error=\u0665 is not a number above 0",
        ),
        (["softmax"], "NAME=VALUE"),
        ([], "KERNEL"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["lookup", "--db", str(tmp_path / "new.db"), *arguments]) == 2
    assert list(tmp_path.iterdir()) == []

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words.lower() in err.lower()


@pytest.mark.parametrize("command", ["lookup", "recommend"])
def test_a_device_is_named_as_other_commands_take_it(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    gpus = [
        DetectedDevice(Device("cuda", "A", 4, 8 * GIB, (8, 0), profile=name), i)
        for i, name in enumerate(("", "mig-1g"))
    ]
    found = {"cuda:1": gpus[1:], "cuda": gpus, "all": [gpus[0]]}
    monkeypatch.setattr("tunedex.tuner.devices.detect", lambda selector: found[selector])
    for selector, device in (("cuda:1", gpus[1].device), ("all", gpus[0].device)):
        assert run([command, *ASKED[:4], "--device", selector, "--db", database]) == 0
        assert device.key in capsys.readouterr().out.split()
    assert run([command, *ASKED[:4], "--device", "cuda", "--db", database]) == 2
    assert "--device cuda names unlike devices; choose one of cuda:0, cuda:1" in capsys.readouterr().err


def test_your_own_database_may_be_absent_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TUNEDEX_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert answer(capsys, *ASKED)["match"] == "default"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["lookup", "recommend"])
@pytest.mark.parametrize("spelled", ["{folder}/x.db", "sqlite:///{folder}/x.db"])
def test_a_database_in_a_folder_that_is_not_there_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    spelled: str,
) -> None:
    folder = tmp_path / "typo"
    url = spelled.format(folder=folder)
    said = f"tuner: database {folder}/x.db: there is no folder {folder}\n"
    assert run([command, *ASKED, "--db", url]) == 2
    assert capsys.readouterr() == ("", said)
    monkeypatch.setenv("TUNEDEX_DB", url)
    assert run([command, *ASKED]) == 2
    assert capsys.readouterr() == ("", said)


def test_a_row_that_cannot_be_read_is_told_and_costs_no_answer(
    database: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE tunedex_bests SET time_us = 'abc'")
    for command in ("lookup", "recommend"):
        assert run([command, *ASKED, "--db", database]) == 0
        assert "default" in capsys.readouterr().out
    assert "tunedex_bests id 2: time_us is 'abc'" in caplog.text
    assert run(["db", "check", "--db", database]) == 1


@pytest.mark.parametrize("db", ["mysql://x/y", "/dev/null/x/tunedex.db", "."])
def test_a_wrong_database_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str], db: str) -> None:
    assert run(["lookup", *ASKED, "--db", db]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_setting_names_the_database_and_torch_is_not_loaded(database: str) -> None:
    code = (
        "import sys; from tunedex.cli.app import run; code = run(sys.argv[1:]); "
        "assert 'torch' not in sys.modules and 'fastapi' not in sys.modules; sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "lookup", *ASKED, "--json"],
        env={**os.environ, "TUNEDEX_DB": database},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["config"]["block"] == 32
