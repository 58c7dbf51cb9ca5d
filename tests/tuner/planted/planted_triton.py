"""Triton kernels that a device cannot stand: apart, since not every machine has Triton's compiler at hand."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.kernels.offline import MockTensor, compile_triton

#: Elements beyond an output: no device has so much memory.
FAR = 2**40


@triton.jit
def store_far(out, offset):
    tl.store(out + offset, 1.0)


@triton.jit
def wait_for_ever(flag):
    while tl.atomic_add(flag, 0) == 0:
        pass


@triton.jit
def refused(out):
    tl.static_assert(False, "planted: of no use")
    tl.store(out, 1.0)


@triton.jit
def too_large(out, size: tl.constexpr, depth: tl.constexpr):
    rows, terms = tl.arange(0, size), tl.arange(0, depth)
    a = tl.load(out + rows[:, None] * depth + terms[None, :])
    b = tl.load(out + terms[:, None] * size + rows[None, :])
    tl.store(out + rows[:, None] * size + rows[None, :], tl.dot(a, b).to(tl.float16))


def run_fault(fault: str, out: torch.Tensor) -> None:
    if fault == "illegal_access":
        store_far[(1,)](out, FAR)
    else:
        wait_for_ever[(1,)](torch.zeros(1, dtype=torch.int32, device=out.device))


def compile_fault(fault: str, device: Device) -> Resources:
    if fault == "over_limit":
        return compile_triton(device, too_large, MockTensor("float16"), size=128, depth=512)
    return compile_triton(device, refused, MockTensor("float32"))
