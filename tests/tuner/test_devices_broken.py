"""A driver, an NVML or a torch that does not work: said, and never taken for a host without a GPU."""

from __future__ import annotations

import types
from typing import Any

import pytest
from fake_nvml import (
    H100,
    H200,
    SLICE,
    UNKNOWN,
    VERSION_MISMATCH,
    FakeNvmlError,
    board,
    fake_nvml,
    fake_torch,
    find,
    properties,
    visible,
)

from tunedex.core import host
from tunedex.core.errors import DeviceError
from tunedex.tuner import nvml
from tunedex.tuner.devices import detect
from tunedex.tuner.nvml import open_nvml


def test_a_foreign_pynvml_is_tolerated_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    nvml._log_lack.cache_clear()
    lacking = fake_nvml(
        board(H200, "NVIDIA H200"), lacks=("nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode", "nvmlDeviceGetPciInfo")
    )
    for _ in range(2):
        (found,) = find("auto", fake_torch(properties("NVIDIA H200")), lacking)
    assert found.uuid == f"GPU-{H200}"
    assert [r.message for r in caplog.records if "nvmlDeviceGetMigMode" in r.message] == [
        "the installed pynvml has no nvmlDeviceGetMigMode; what it tells stays unknown"
    ]
    assert open_nvml(types.SimpleNamespace(__name__="pynvml")) is None


@pytest.mark.parametrize("selector", ["auto", "all", "cuda", "cuda:0"])
def test_a_broken_nvml_is_an_error_and_never_no_gpu(selector: str) -> None:
    with pytest.raises(DeviceError, match="NVML says RM has detected an NVML/RM version mismatch"):
        find(selector, fake_torch(), fake_nvml(init=VERSION_MISMATCH))


def test_an_nvml_that_does_not_count_is_not_no_gpu() -> None:
    with pytest.raises(DeviceError, match="a GPU is here but torch cannot use it"):
        find("auto", fake_torch(), fake_nvml(fails={"nvmlDeviceGetCount": UNKNOWN}))
    assert find("auto", fake_torch(), fake_nvml())[0].selector == "cpu"


def test_a_cuda_that_does_not_start_is_not_no_gpu_where_there_is_no_nvml() -> None:
    torch = fake_torch(warns="CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803: mismatch")
    with pytest.raises(DeviceError, match=r"CUDA does not answer: .*Error 803: mismatch; `--device cpu`"):
        detect("auto", torch=torch, nvml=lambda: None)
    other = fake_torch(warns="something else is deprecated")
    assert detect("auto", torch=other, nvml=lambda: None)[0].selector == "cpu"


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_is_no_gpu(code: int) -> None:
    absent = fake_nvml(init=FakeNvmlError(code, "Driver Not Loaded"))
    assert find("auto", fake_torch(cuda=None), absent)[0].device == host.cpu()


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (fake_torch(cuda=None), "built without CUDA"),
        (fake_torch(warns="The NVIDIA driver on your system is too old"), "too old"),
        (fake_torch(), "finds no device"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_an_error(torch: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(DeviceError, match=f"NVIDIA H200 is here but torch cannot use it.*{words}"):
        find("auto", torch, fake_nvml(board(H200, "NVIDIA H200")))


@pytest.mark.parametrize("mask", ["", "-1", "-1,0", "none", "NoDevFiles"])
def test_a_gpu_hidden_on_purpose_is_no_gpu(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert find("auto", fake_torch(), fake_nvml(board(H200, "NVIDIA H200")))[0].selector == "cpu"


@pytest.mark.parametrize("mask", ["7", "GPU-", "GPU-77777777", f"MIG-{SLICE}", "x"])
def test_a_mask_that_names_nothing_is_an_error_that_says_what_there_is(
    mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    cards = properties("NVIDIA H200"), properties("NVIDIA H100 80GB HBM3", H100)
    module = fake_nvml(board(H200, "NVIDIA H200"), board(H100, "NVIDIA H100 80GB HBM3"))
    with pytest.raises(DeviceError, match=f"{mask} names no device of this host, which has GPU-{H200}, GPU-{H100};"):
        find("auto", fake_torch(*visible(mask, *cards)), module)


def test_a_device_that_does_not_answer_is_an_error() -> None:
    torch = fake_torch(properties("NVIDIA H200"), raises=RuntimeError("CUDA error: system not yet initialized\nmore"))
    with pytest.raises(DeviceError, match=r"CUDA does not answer: CUDA error: system not yet initialized$"):
        find("auto", torch, fake_nvml(board(H200, "NVIDIA H200")))


def test_the_cpu_asks_no_driver() -> None:
    broken = fake_nvml(init=FakeNvmlError(18, "Driver/library version mismatch"))
    assert find("cpu", None, broken)[0].device == host.cpu()
