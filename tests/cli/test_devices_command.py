"""`tuner devices` on this host."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from tunedex.cli import devices
from tunedex.core import host
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput


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
    assert Environment.from_dict(cpu["environment"]).key == cpu["environment"]["key"]


def test_the_table(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["devices"])
    assert result.exit_code == 0
    assert host.cpu().key in result.stdout
    assert host.cpu().name in result.stdout


def test_a_device_by_selector_or_by_key() -> None:
    assert devices.device_of("cpu") == host.cpu()
    assert devices.device_of("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g").family == "hopper"
    assert devices.device_of("name:NVIDIA_H100_PCIe").kind == "named"
    with pytest.raises(BadInput):
        devices.device_of("nvidia-h100")
