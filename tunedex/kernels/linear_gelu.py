"""linear_gelu: a linear layer and its GELU in one kernel, as in a transformer's feed-forward block.

    out[b, i, j] = gelu(sum over t of x[b, i, t] * weight[j, t] + bias[j])

GELU (Hendrycks and Gimpel, arXiv:1606.08415) comes in its tanh form, the default, which FLUX uses, and its erf form.
A batch adds rows: the kernel sees ``batch * m`` of them, evenly spaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tunedex.core.config import Config, Value
from tunedex.core.device import KIB, Device
from tunedex.core.errors import BadInput
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import BATCH, Attribute, DefaultRule, Dimension, Operand, Signature
from tunedex.kernels.base import (
    LEAST_TARGET,
    Cost,
    Implementation,
    InputSource,
    Kernel,
    Launch,
    OutputSpec,
    Reference,
    Tensors,
    Tunable,
)
from tunedex.kernels.linear_gelu_numba import NumbaLinear
from tunedex.kernels.linear_gelu_triton import FEW_ROWS, TritonLinear
from tunedex.kernels.precision import matmul_precision
from tunedex.kernels.rows import item_bytes, offset, placed, vector_operand, wide_pitch
from tunedex.kernels.version import version_of

if TYPE_CHECKING:
    import torch

DTYPE_NAMES = ("float32", "float16", "bfloat16")

#: Shared memory that the Triton defaults fit into: the least that any device of compute capability 8.0 or later has.
DEFAULT_SHARED_MEMORY_BYTES = 99 * KIB

#: Fewer rows and fewer columns of output than this are left to the library on a CPU.
FEW = 32

#: What runs, in a fixed order: a change to any of them is a new version.
_CODE = tuple(
    Path(__file__).with_name(name)
    for name in (
        "linear_gelu.py",
        "linear_gelu_triton.py",
        "linear_gelu_numba.py",
        "gelu.py",
        "numba_cpu.py",
        "precision.py",
    )
)

_OPERANDS = ("x", "weight", "bias")
_HALVES = ("float16", "bfloat16")
_TRITON_DEFAULT: dict[str, Value] = {
    "implementation": "triton",
    "variant": "pointer",
    "precision": "ieee",
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "group_m": 8,
    "num_warps": 4,
    "num_stages": 3,
}
_FEW_ROWS_DEFAULT = {**_TRITON_DEFAULT, "block_m": 64, "block_n": 64}
_LIBRARY_DEFAULT: dict[str, Value] = {"implementation": "library", "call": "eager", "precision": "ieee"}
_NUMBA_DEFAULT: dict[str, Value] = {
    "implementation": "numba",
    "micro": "2x8",
    "rows_per_task": 256,
    "block_n": 256,
    "block_k": 256,
    "threads": 0,
}

SIGNATURE = Signature(
    kernel="linear_gelu",
    version=version_of(*_CODE),
    formula="out = gelu(x @ weight^T + bias)",
    dimensions=(BATCH, Dimension("m"), Dimension("n", "exact"), Dimension("k", "exact")),
    operands=tuple(Operand(name, DTYPE_NAMES) for name in _OPERANDS),
    attributes=(Attribute("gelu", ("tanh", "erf"), "tanh"),),
    layouts=("contiguous", "strided"),
    defaults=(
        DefaultRule(
            "cuda",
            _FEW_ROWS_DEFAULT,
            {"batch": (1, 1), "m": (1, FEW_ROWS)},
            DEFAULT_SHARED_MEMORY_BYTES,
            _HALVES,
            LEAST_TARGET,
        ),
        DefaultRule(
            "cuda",
            _TRITON_DEFAULT,
            min_shared_memory_bytes=DEFAULT_SHARED_MEMORY_BYTES,
            dtypes=_HALVES,
            min_target=LEAST_TARGET,
        ),
        # float32 too: without tensor cores the library is twice as fast as any tile of ours.
        DefaultRule("cuda", _LIBRARY_DEFAULT),
        # On a few numbers the chain may err by nothing, by chance; held against it, only itself is sure to be accepted.
        DefaultRule("cpu", _LIBRARY_DEFAULT, {"m": (0, FEW - 1), "n": (0, FEW - 1)}),
        DefaultRule("cpu", _NUMBA_DEFAULT, dtypes=("float32",)),
        DefaultRule("cpu", _LIBRARY_DEFAULT),
    ),
    same_dtype=_OPERANDS,
)


class LibraryLinear(Implementation):
    """The vendor's matrix product: with the activation in its epilogue, or followed by it."""

    name: ClassVar[str] = "library"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "cpu"})

    def missing(self) -> str | None:
        return None if find_spec("torch") else "torch is not installed"

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        # The fused call knows one form of GELU a device: cuBLASLt's epilogue the tanh form, the CPU's the erf form.
        fused = problem.attributes["gelu"] == {"cuda": "tanh", "cpu": "erf"}[device.kind]
        return (
            Tunable("call", ("eager", "addmm_activation") if fused else ("eager",), "apart, or fused by the library"),
            Tunable("precision", compute_precisions(problem, device), "what a product of two elements keeps"),
        )

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        import torch

        fused = config.values["call"] == "addmm_activation"
        approximate = torch_form(problem)
        compute = config.values["precision"]
        governed = problem.dtype == "float32" and device.kind == "cuda"
        gelu_out = torch.ops.aten.gelu.out

        def launch(operands: Tensors, outputs: Tensors) -> None:
            x, out = operands["x"], outputs["out"]
            x, out = x.view(-1, x.shape[-1]), out.view(-1, out.shape[-1])
            weight, bias = operands["weight"].t(), operands["bias"]
            with matmul_precision(compute) if governed else nullcontext():
                if fused:
                    torch._addmm_activation(bias, x, weight, use_gelu=True, out=out)
                    return
                torch.addmm(bias, x, weight, out=out)
            gelu_out(out, approximate=approximate, out=out)

        return launch


class LinearGelu(Kernel):
    """See the module."""

    signature: ClassVar[Signature] = SIGNATURE
    implementations: ClassVar[tuple[Implementation, ...]] = (
        TritonLinear(),
        NumbaLinear(),
        LibraryLinear(),
    )
    row_operands = frozenset({"x"})
    dimensions_notes: ClassVar[Mapping[str, str]] = {
        "batch": "adds rows to one product, so the best batch follows from the best m",
        "streams": "none: one product fills the device, and its tiles already run side by side",
        "precision": "ieee or tf32 for float32 on CUDA; ieee alone for float16 and bfloat16, whose products are exact "
        "in the float32 accumulator, and on a CPU",
        "dtypes": "one for all operands; storage of another precision is a kernel of its own",
    }

    def cost(self, problem: Problem) -> Cost:
        m, n, k = _sizes(problem)
        return Cost(2.0 * m * n * k, float((m * k + n * k + n + m * n) * item_bytes(problem)), problem.dtype)

    def reduction_length(self, problem: Problem) -> int:
        return problem.dims["k"]

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        """x of ``[batch, m, k]`` and bias of ``[n]`` standard normal, the bias a tenth of that; weight of ``[n, k]``
        with a variance of 1/k, so that the sum has x's."""
        _, n, k = _sizes(problem)
        values = {
            "x": source.normal((problem.batch, problem.dims["m"], k), problem.dtype),
            "weight": source.normal((1, n, k), problem.dtype, scale=1 / math.sqrt(k), outliers=False),
        }
        pitch = wide_pitch(problem, k) if problem.layout == "strided" or source.strided else k
        x, weight = (placed(tensor, pitch, offset(problem)) for tensor in values.values())
        bias = vector_operand(problem, source.normal((n,), problem.dtype, scale=0.1, outliers=False))
        return {"x": x, "weight": weight[0], "bias": bias}

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {"out": OutputSpec((problem.batch, problem.dims["m"], problem.dims["n"]), problem.dtype)}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        """``scale`` holds what the chain rounds (the sum z, the result) and what adding up k products in float32
        loses, which grows with the lengths of the two vectors: |z| + |x| |w| / sqrt(k) + |gelu(z)|."""
        import torch

        x, weight, bias = (operands[name].to(dtype or torch.float64) for name in ("x", "weight", "bias"))
        with matmul_precision("ieee"):
            z = torch.nn.functional.linear(x, weight, bias)
        value = torch.nn.functional.gelu(z, approximate=torch_form(problem))
        lengths = x.norm(dim=-1, keepdim=True) * weight.norm(dim=-1)
        scale = lengths.div_(math.sqrt(problem.dims["k"])).add_(z.abs_()).add_(value.abs())
        return {"out": Reference(value, scale)}

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        import torch

        z = torch.nn.functional.linear(operands["x"], operands["weight"], operands["bias"])
        return {"out": torch.nn.functional.gelu(z, approximate=torch_form(problem))}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        """The problem of x ``[m, k]`` or ``[batch, m, k]``, weight ``[n, k]`` and bias ``[n]``."""
        x, weight, bias = (operands[name] for name in ("x", "weight", "bias"))
        _check(x.dim() in (2, 3), "x", "as [m, k] or [batch, m, k]", list(x.shape))
        k = x.shape[-1]
        _check(weight.dim() == 2 and weight.shape[1] == k, "weight", f"as [n, {k}] beside x", list(weight.shape))
        n = weight.shape[0]
        _check(tuple(bias.shape) == (n,), "bias", f"of shape [{n}]", list(bias.shape))
        for name, tensor in operands.items():
            _check(tensor.dtype == x.dtype, name, f"in {x.dtype}, as x", tensor.dtype)
            _check(tensor.device == x.device, name, f"on {x.device}, as x", tensor.device)
            _check(tensor.shape[-1] <= 1 or tensor.stride(-1) == 1, name, "with unit inner stride", tensor.stride(-1))
        try:
            rows = x.view(x.shape[:-1].numel(), k)
        except RuntimeError:
            raise BadInput(
                f"linear_gelu needs x with evenly spaced rows, not of strides {x.stride()}", field="x"
            ) from None
        strided = not (x.is_contiguous() and weight.is_contiguous())
        places = [tensor.data_ptr() for tensor in (x, weight, bias)]
        if strided:
            places += [tensor.stride(0) * x.element_size() for tensor in (rows, weight) if tensor.shape[0] > 1]
        return self.signature.problem(
            {
                "batch": x.shape[0] if x.dim() == 3 else 1,
                "m": x.shape[-2],
                "n": n,
                "k": k,
                "dtype": x.dtype,
                "layout": "strided" if strided else "contiguous",
                "alignment": math.gcd(ALIGNMENT_BYTES, *places),
                **attributes,
            }
        )

    def quick(self, device: Device) -> Sequence[Mapping[str, Any]]:
        if device.kind == "cpu":
            return ({"m": 512, "n": 3072, "k": 768, "dtype": "float32"},)
        return (
            {"m": 4608, "n": 12288, "k": 3072, "dtype": "bfloat16"},
            {"m": 4608, "n": 3072, "k": 3072, "dtype": "float32", "max_error": 1e-3},
        )


def compute_precisions(problem: Problem, device: Device) -> tuple[str, ...]:
    """The precisions in which ``device`` multiplies the problem's dtype: tf32 (10 bits of fraction) only for float32
    on tensor cores that have it."""
    return ("ieee", "tf32") if problem.dtype == "float32" and device.target >= 80 else ("ieee",)


def torch_form(problem: Problem) -> str:
    """The problem's form of GELU as torch's ``approximate`` spells it."""
    return {"tanh": "tanh", "erf": "none"}[problem.attributes["gelu"]]


def _sizes(problem: Problem) -> tuple[int, int, int]:
    """``(batch * m, n, k)``."""
    return problem.batch * problem.dims["m"], problem.dims["n"], problem.dims["k"]


def _check(right: bool, name: str, wanted: str, found: object) -> None:
    if not right:
        raise BadInput(f"linear_gelu needs {name} {wanted}, not {found}", field=name)


KERNEL = LinearGelu()
