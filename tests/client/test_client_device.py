"""Which device this process runs on: the driver through a library that answers like it, torch, a child process."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import types
from typing import Any

import pytest

from tunedex.client import device as client_device
from tunedex.client import driver
from tunedex.client.cache import Slot
from tunedex.client.device import device_named, this_device
from tunedex.core import host
from tunedex.core.cuda import from_properties
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, DeviceError

#: What the driver of an H200 says, by attribute number.
H200 = {"name": "NVIDIA H200", "memory": 150_110_011_392, 16: 132, 38: 62_914_560, 75: 9, 76: 0, 97: 232_448}
H200_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"


class Driver:
    """The CUDA driver of a host with ``devices``; ``fails`` maps a call to the code that it returns."""

    def __init__(self, *devices: dict[Any, Any], **fails: int) -> None:
        self.devices, self.fails = devices, fails

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's names
        return self.fails.get("cuInit", 0 if self.devices else 100)

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.devices)
        return self.fails.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return self.fails.get("cuDeviceGet", 0)

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:  # noqa: N802
        name.value = self.devices[device.value]["name"].encode()
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: ctypes.c_int) -> int:  # noqa: N802
        memory._obj.value = self.devices[device.value]["memory"]
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> int:  # noqa: N802
        value._obj.value = self.devices[device.value][attribute]
        return self.fails.get("cuDeviceGetAttribute", 0)


def as_child_says(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(client_device, "_ask_child", lambda: json.loads(json.dumps(answer)))


#: A slice, whose driver names its profile or not, a virtual GPU, and a card under its name of another driver.
PART = {**H200, "name": "NVIDIA H200 MIG 2g.35gb", "memory": 35 * 2**30, 16: 32}
AMPERE = {**H200, 16: 108, 38: 41_943_040, 75: 8, 97: 166_912}


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (H200, H200_KEY),
        ({**H200, "name": "nvidia  h200 "}, H200_KEY),
        (PART, "nvidia-sm90-32sm-l2_60m-smem_227k-mem_35g-mig-2g.35gb"),
        ({**PART, "name": "NVIDIA H200"}, "nvidia-sm90-32sm-l2_60m-smem_227k-mem_35g"),
        (
            {**AMPERE, "name": "GRID A100D-20C", "memory": 20 * 2**30},
            "nvidia-sm80-108sm-l2_40m-smem_163k-mem_20g-vgpu-a100d-20c",
        ),
    ],
)
def test_the_driver_gives_the_key_that_torch_gives_the_tuner(
    said: dict[Any, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_child_says(monkeypatch, driver.query(Driver(said)))
    properties = types.SimpleNamespace(
        name=said["name"],
        major=said[75],
        minor=said[76],
        multi_processor_count=said[16],
        total_memory=said["memory"],
        L2_cache_size=said[38],
        shared_memory_per_block_optin=said[97],
    )
    assert this_device().key == from_properties(properties).key == key
    assert this_device() == from_properties(properties)


@pytest.mark.parametrize("minors", [((12, 0), (12, 1)), ((8, 6), (8, 9))])
def test_boards_of_one_name_that_differ_in_capability_have_caches_of_their_own(
    minors: tuple[tuple[int, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = set()
    for major, minor in minors:
        client_device._from_driver.cache_clear()
        as_child_says(monkeypatch, driver.query(Driver({**H200, 75: major, 76: minor})))
        paths.add(Slot("http://127.0.0.1:8421", this_device().key, "stable", None).path)
    assert len(paths) == 2


@pytest.mark.parametrize("cuda", [None, Driver(), Driver(cuInit=100), Driver(cuDeviceGetCount=100)])
def test_no_driver_and_no_gpu_is_the_cpu(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    as_child_says(monkeypatch, driver.query(cuda))
    assert this_device() == host.cpu()


@pytest.mark.parametrize(
    ("cuda", "words"),
    [
        (Driver(H200, cuInit=803), "cuInit returns 803"),
        (Driver(H200, cuDeviceGetCount=999), "cuDeviceGetCount returns 999"),
        (Driver(H200, cuDeviceGet=101), "returns 101"),
        (Driver(H200, cuDeviceGetAttribute=1), "returns 1"),
    ],
)
def test_a_driver_that_does_not_answer_is_not_the_cpu(cuda: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_child_says(monkeypatch, driver.query(cuda))
    with pytest.raises(DeviceError, match=words):
        this_device()


def test_the_child_process_answers_here() -> None:
    answer = client_device._ask_child()
    assert set(answer) in ({"device"}, {"error"})


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/false"])
def test_a_child_process_that_fails_is_an_error(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert "child process" in client_device._ask_child()["error"]


def test_torch_without_cuda_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(version=types.SimpleNamespace(cuda=None)))
    monkeypatch.setattr(client_device, "_ask_child", _nobody)
    assert this_device() == host.cpu()


def test_torch_is_asked_only_where_it_already_uses_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    used = types.SimpleNamespace(
        version=types.SimpleNamespace(cuda="13.0"),
        cuda=types.SimpleNamespace(is_initialized=lambda: False, get_device_properties=_nobody),
    )
    as_child_says(monkeypatch, driver.query(Driver(H200)))
    monkeypatch.setitem(sys.modules, "torch", used)
    assert this_device().key == H200_KEY


@pytest.mark.parametrize("torch", [types.SimpleNamespace(), types.ModuleType("torch")])
def test_a_half_imported_torch_is_passed_over(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    as_child_says(monkeypatch, {"device": None})
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert this_device() == host.cpu()


def test_a_device_by_name() -> None:
    assert device_named("cpu") == host.cpu()
    assert device_named(H200_KEY).key == H200_KEY
    known = Device.from_key(H200_KEY)
    assert device_named(known) is known
    for wrong in ("", "h200", 3, [], b"cpu"):
        with pytest.raises(BadInput):
            device_named(wrong)  # type: ignore[arg-type]


def test_asking_imports_no_torch() -> None:
    code = "import sys; from tunedex.client import this_device; this_device(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def _nobody(*_: object) -> Any:
    raise AssertionError("nobody is to be asked")
