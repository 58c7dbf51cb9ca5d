"""`tuner kernels`: every kernel with the size of its space, on this host and on a device that is not here."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tunedex.cli import app, kernels
from tunedex.core import host
from tunedex.core.device import Device
from tunedex.kernels import all_kernels
from tunedex.tuner.space import Space

H200 = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"


@pytest.fixture
def run() -> Any:
    app = typer.Typer()
    kernels.register(app)
    app.callback()(lambda: None)
    return lambda *arguments: CliRunner().invoke(app, ["kernels", *arguments])


@pytest.mark.parametrize("device", ["cpu", H200])
def test_the_document(run: Any, device: str) -> None:
    result = run("--json", "--device", device)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    where = host.cpu() if device == "cpu" else Device.from_key(device)
    assert document["device"]["key"] == where.key
    assert [item["kernel"] for item in document["kernels"]] == list(all_kernels())
    for item in document["kernels"]:
        kernel = all_kernels()[item["kernel"]]
        assert item["formula"] == kernel.signature.formula
        assert item["notes"] == kernel.dimensions_notes
        assert len(item["spaces"]) == len(kernel.quick(where)) > 0
        for space in item["spaces"]:
            named = {**space["problem"]["dims"], **space["problem"]["attributes"]}
            dtypes = {f"{name}_dtype": dtype for name, dtype in space["problem"]["dtypes"].items()}
            problem = kernel.signature.problem({**named, **dtypes})
            assert problem.key == space["problem"]["key"]
            assert space["size"] == len(Space.of(kernel, problem, where)) > 0
            assert sum(branch["size"] for branch in space["branches"]) == space["size"]


def test_the_table(run: Any) -> None:
    result = run("--device", "cpu")
    assert result.exit_code == 0
    for name in all_kernels():
        assert name in result.stdout
    assert "numba" in result.stdout


def test_a_kernel_that_names_no_preset_problems_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(all_kernels()["softmax"], "quick", lambda device: [{"rows": 0, "cols": 4, "dtype": "float32"}])
    assert app.run(["kernels", "--json", "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("kernel softmax names no problems of the quick preset: BadInput: rows=0: nothing to compute")
    spaces = {item["kernel"]: item["spaces"] for item in json.loads(printed.out)["kernels"]}
    assert not spaces["softmax"]
    assert spaces["linear_gelu"]


def test_a_device_that_does_not_exist(run: Any) -> None:
    result = run("--device", "h200")
    assert result.exit_code != 0
    assert str(result.exception).endswith("known are auto, all, cuda, cuda:N or cpu, or a device's key")
