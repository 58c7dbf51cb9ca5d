"""Compiling Triton kernels for targets that are not here, and reading cubins."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import triton
import triton.language as tl

from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.kernels import offline
from tunedex.kernels.base import CompileError, OverLimit
from tunedex.kernels.offline import MockTensor, compile_triton, compiling_for, interpreted, resources_of_cubin

KEYS = {
    80: "nvidia-sm80-108sm-l2_40m-smem_163k-mem_80g",
    86: "nvidia-sm86-84sm-l2_6m-smem_99k-mem_24g",
    89: "nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g",
    90: "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g",
}
GPUS = {target: Device.from_key(key) for target, key in KEYS.items()}


@triton.jit
def scale(x, out, n, factor, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def product(x, y, out, side: tl.constexpr):
    """One tile of a product, which holds both operands in shared memory."""
    at = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on disk and in memory: what is compiled here is compiled now."""
    for function in (scale, product):
        function.device_caches.clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def compile_scale(device: Device, *, aligned: bool = True, n: int = 1024, block: int = 512) -> Resources:
    x = MockTensor("bfloat16", aligned=aligned)
    return compile_triton(device, scale, x, MockTensor("bfloat16"), n, 2.0, block=block, num_warps=4)


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.cubin")}


@pytest.mark.parametrize("target", GPUS)
def test_every_target_is_compiled_for_itself(target: int, cache_dir: Path) -> None:
    resources = compile_scale(GPUS[target])
    assert resources.registers is not None
    assert 0 < resources.registers <= 255
    assert resources.spill_bytes == 0
    assert resources.shared_memory_bytes is not None
    (assembly,) = cache_dir.rglob("*.ptx")
    assert f".target sm_{target}" in assembly.read_text()


def test_what_was_compiled_is_not_compiled_again(cache_dir: Path) -> None:
    compile_scale(GPUS[90])
    compile_scale(GPUS[80])
    both = entries(cache_dir)
    assert len(both) == 2
    scale.device_caches.clear()
    compile_scale(GPUS[90])
    assert entries(cache_dir) == both


def test_another_process_finds_it_under_the_same_key(cache_dir: Path) -> None:
    compile_scale(GPUS[90])
    before = entries(cache_dir)
    code = "from test_offline import *; compile_scale(GPUS[90])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    assert entries(cache_dir) == before


@pytest.mark.parametrize("change", [{"aligned": False}, {"n": 1023}, {"n": 1}, {"block": 256}], ids=str)
def test_what_triton_specialises_for_is_part_of_the_key(change: dict[str, int], cache_dir: Path) -> None:
    compile_scale(GPUS[90])
    compile_scale(GPUS[90], **change)
    assert len(entries(cache_dir)) == 2


def test_too_much_shared_memory_is_over_the_limit_of_one_device_only() -> None:
    operands = [MockTensor("float32") for _ in range(3)]
    kept = compile_triton(GPUS[80], product, *operands, side=128)
    assert kept.shared_memory_bytes is not None
    assert kept.shared_memory_bytes > GPUS[86].shared_memory_bytes
    with pytest.raises(OverLimit) as caught:
        compile_triton(GPUS[86], product, *operands, side=128)
    assert caught.value.resource == "bytes of shared memory"
    assert caught.value.limit == GPUS[86].shared_memory_bytes < caught.value.needed


def test_over_limit_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(OverLimit("bytes of shared memory", 131072, 101376)))
    assert isinstance(error, CompileError)
    assert str(error) == "needs 131072 bytes of shared memory, the device has 101376"


def test_a_refused_program_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError) as caught:
        compile_scale(GPUS[90], block=500)
    assert str(caught.value) == "ValueError: arange's range must be a power of 2"
    assert capsys.readouterr().out == ""


def test_the_driver_is_as_before_after_success_and_failure() -> None:
    from triton.runtime import driver

    before = driver._active
    compile_scale(GPUS[90])
    assert driver._active is before
    with pytest.raises(CompileError):
        compile_scale(GPUS[90], block=500)
    assert driver._active is before


def test_threads_compile_one_after_the_other(cache_dir: Path) -> None:
    failures: list[BaseException] = []

    def work(device: Device) -> None:
        try:
            compile_scale(device)
        except BaseException as error:  # noqa: BLE001 - told below, by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in GPUS.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    targets = sorted(
        line for path in cache_dir.rglob("*.ptx") for line in path.read_text().splitlines() if ".target" in line
    )
    assert [line.split()[1].strip("a,") for line in targets] == ["sm_80", "sm_86", "sm_89", "sm_90"]


def test_what_is_no_cubin_has_no_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources_of_cubin(b"not a cubin") == Resources()
    monkeypatch.setattr(offline, "_cuobjdump", lambda: None)
    assert resources_of_cubin(b"") == Resources()


def test_without_a_tool_only_triton_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "_cuobjdump", lambda: None)
    resources = compile_triton(GPUS[80], product, *(MockTensor("float32") for _ in range(3)), side=64)
    assert resources.shared_memory_bytes
    assert resources.registers is resources.spill_bytes is None


def test_mock_tensor_strides() -> None:
    assert MockTensor("float16", shape=(3, 4, 5)).stride() == (20, 5, 1)
    assert MockTensor("float16", shape=(3, 5), pitch=8).stride() == (8, 1)
    assert MockTensor("float16", shape=(2, 3, 5), pitch=8).stride(0) == 24
    assert MockTensor("float16", shape=(7,)).stride(0) == 1
    assert MockTensor("float16", aligned=False).data_ptr() % 2 == 1


def test_interpreted_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not interpreted()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert interpreted()


def test_compiling_for_is_undone_by_an_error() -> None:
    from triton.runtime import driver

    before = driver._active

    def fail() -> None:
        with compiling_for(GPUS[89]):
            assert driver.active.get_current_target().arch == 89
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert driver._active is before
