"""The patterns of the built-in kernels. A kernel of another package brings its own, as `Kernel.patterns`.

An operator shows up as what the dispatcher runs: ``aten::linear`` under `torch.inference_mode`, and what it is made
of everywhere else (``addmm``; ``mm`` and ``add`` where x is not contiguous, on a copy of it where no view is flat).
"""

from __future__ import annotations

from collections.abc import Mapping

from tunedex.kernels.base import Kernel
from tunedex.kernels.patterns import Call, Pattern


def _added(operand: str) -> tuple[Call, ...]:
    """The sum of a value and ``operand``."""
    operators = ("aten::add.Tensor", "aten::add_.Tensor")
    return tuple(Call(name, value=("self", "other"), rest=operand, where={"alpha": 1}) for name in operators)


_GELU = Call(
    "aten::gelu",
    value=("self",),
    attributes={"gelu": ("approximate", {"none": "erf", "tanh": "tanh"})},
)
_WEIGHT = {"weight": "mat2"}
_PRODUCT = (Call("aten::mm", operands={"x": "self", **_WEIGHT}, transposed=("weight",)),)
_PRODUCT_OF_COPY = (Call("aten::mm", value=("self",), operands=_WEIGHT, transposed=("weight",)),)
_BIAS = _added("bias")
_NORM_OPERANDS = {"x": "input", "weight": "weight", "bias": "bias"}

BUILTIN: Mapping[str, tuple[Pattern, ...]] = {
    "layernorm_gelu_residual": (
        Pattern(
            (
                (
                    Call("aten::native_layer_norm", operands=_NORM_OPERANDS),
                    Call("aten::layer_norm", operands=_NORM_OPERANDS),
                ),
                (_GELU,),
                _added("residual"),
            )
        ),
    ),
    "softmax": (
        Pattern(
            (
                (
                    Call("aten::_softmax", operands={"x": "self"}, last="dim", where={"half_to_float": False}),
                    Call("aten::softmax.int", operands={"x": "self"}, last="dim", where={"dtype": None}),
                ),
            )
        ),
    ),
    "linear_gelu": (
        Pattern(
            (
                (
                    Call("aten::linear", operands={"x": "input", "weight": "weight", "bias": "bias"}),
                    Call(
                        "aten::addmm",
                        operands={"x": "mat1", "weight": "mat2", "bias": "self"},
                        transposed=("weight",),
                        where={"beta": 1, "alpha": 1},
                    ),
                ),
                (_GELU,),
            )
        ),
        Pattern((_PRODUCT, _BIAS, (_GELU,))),
        Pattern(((Call("aten::clone", operands={"x": "self"}),), _PRODUCT_OF_COPY, _BIAS, (_GELU,))),
    ),
}


def patterns_of(kernel: Kernel) -> tuple[Pattern, ...]:
    """The patterns that ``kernel`` is recognised by; none where it says none."""
    return kernel.patterns or BUILTIN.get(kernel.name, ())
