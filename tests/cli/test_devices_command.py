"""`tuner devices` on this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import tunedex
from tunedex.cli import devices
from tunedex.cli.app import run
from tunedex.core import host
from tunedex.core.device import Device, Environment
from tunedex.core.display import environment_words
from tunedex.core.errors import BadInput
from tunedex.tuner import nvml
from tunedex.tuner.devices import environment_of


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    devices.register(app)
    app.callback()(lambda: None)
    return app


def test_the_document(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["devices", "--json"])
    assert result.exit_code == 0
    cpu = json.loads(result.stdout)["devices"][-1]
    assert Device.from_dict(cpu) == host.cpu()
    assert cpu["key"] == host.cpu().key
    assert (cpu["index"], cpu["uuid"]) == (None, None)
    assert cpu["peaks"] == {"memory_bytes_s": None, "flops_s": {}}
    assert Environment.from_dict(cpu["environment"]).key == cpu["environment"]["key"]


def test_the_table(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["devices"])
    assert result.exit_code == 0
    assert host.cpu().key in result.stdout
    assert host.cpu().name in result.stdout
    environment = environment_of(host.cpu())
    assert environment_words(environment.key, environment) in result.stdout


def test_a_device_by_selector_or_by_key() -> None:
    assert devices.device_of("cpu") == host.cpu()
    assert devices.device_of("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g").family == "hopper"
    assert devices.device_of("name:NVIDIA_H100_PCIe").kind == "named"
    with pytest.raises(BadInput):
        devices.device_of("nvidia-h100")


class _VersionMismatch(Exception):
    """What pynvml raises between the update of a driver and the restart that it asks for."""

    value = 18

    def __str__(self) -> str:
        return "Driver/library version mismatch"


def _mismatched() -> None:
    raise _VersionMismatch


@pytest.mark.parametrize("command", ["devices", "devices --json", "sweep --db {db} --json"])
def test_a_broken_driver_is_said_in_one_line_and_nothing_is_stored(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml, "_opened", None)
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=_mismatched))
    assert run(command.format(db=tmp_path / "tunedex.db").split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "tuner: the NVIDIA driver does not answer: NVML says Driver/library version mismatch; a restart may be due\n"
    )
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert run(["devices"]) == 0


def test_a_foreign_pynvml_costs_one_line_and_spoils_no_document(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("import warnings; warnings.warn('use another package', FutureWarning)\n")
    paths = os.pathsep.join([str(tmp_path), str(Path(tunedex.__file__).parents[1])])
    result = subprocess.run(
        [sys.executable, "-m", "tunedex", "devices", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert json.loads(result.stdout)["devices"][-1]["key"] == host.cpu().key
    assert result.stderr == "the installed pynvml has no nvmlInit; what it tells stays unknown\n"
