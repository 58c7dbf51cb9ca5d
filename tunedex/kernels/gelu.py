"""GELU, exactly and as one fitted exponential, for every language the kernels are written in.

Both forms of GELU are x * Phi(x) with Phi(-a) = 1 - Phi(a), so

    gelu(x) = max(x, 0) - a * Phi(-a)        a = min(|x|, 16)        Phi(-a) = 2^Q(a)

erf:  Phi(a) = (1 + erf(a / sqrt 2)) / 2         (Hendrycks and Gimpel, arXiv:1606.08415)
tanh: Phi(a) = (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))) / 2

log2 Phi(-a) is smooth and close to a parabola, so that a short polynomial Q serves: one exponential and a handful
of multiply-adds, where erf takes twice as many instructions. Q is made for 0 <= a <= 5.5; its last coefficient is
negative and Q falls all the way, so beyond 5.5 the term vanishes as it should: at 16 it is 0 in float32, and a is
taken no further, for an infinite one times that 0 were no number. The errors, with coefficients rounded
to float32:

    float16, bfloat16, whose own rounding is 2^-11 and 2^-8: the largest |a 2^Q(a) - a Phi(-a)| is least
        erf   degree 5   4.4e-7
        tanh  degree 5   4.6e-6
    float32: the largest |2^Q(a) - Phi(-a)| max(a, 1) is least, since a small x too is to keep all its digits
        erf   degree 8   2.1e-8
        tanh  degree 12  3.9e-9
"""

from __future__ import annotations

import math

from tunedex.kernels.jit import jit, tl

FORMS = ("erf", "tanh")

LOG2_E = math.log2(math.e)

#: Where the term is 0 in float32: a goes no further. Triton's and CUDA's code spell it out.
LARGEST = 16.0

#: The coefficients of Q, constant first, for float16 and bfloat16 by form.
_FOR_HALVES = {
    "erf": (
        -1.000037670135498,
        -1.1507878303527832,
        -0.4599926471710205,
        -0.05182718113064766,
        0.0070844655856490135,
        -0.0004732946399599314,
    ),
    "tanh": (
        -1.0003643035888672,
        -1.1482893228530884,
        -0.46537789702415466,
        -0.04737720638513565,
        0.00871889665722847,
        -0.00197707861661911,
    ),
}
#: The same for float32.
_FOR_FLOAT32 = {
    "erf": (
        -0.9999999403953552,
        -1.1511069536209106,
        -0.45919305086135864,
        -0.052546437829732895,
        0.007142782211303711,
        -0.00020247917564120144,
        -0.0001572786713950336,
        3.296799332019873e-05,
        -2.2758697468816536e-06,
    ),
    "tanh": (
        -1.0,
        -1.1511046886444092,
        -0.4592136740684509,
        -0.05153920501470566,
        0.007870876230299473,
        -0.0003660520596895367,
        -0.0001423566573066637,
        -0.00011064908903790638,
        -0.00010815264977281913,
        9.144854993792251e-05,
        -2.4906059479690157e-05,
        3.0869841793901287e-06,
        -1.494676524771421e-07,
    ),
}


def fitted(form: str, dtype: str) -> tuple[float, ...]:
    """The coefficients of Q, constant first, for GELU's ``form`` (``erf``, ``tanh``) and a result of ``dtype``."""
    return (_FOR_FLOAT32 if dtype == "float32" else _FOR_HALVES)[form]


@jit
def gelu_fitted(z, Q: tl.constexpr):
    """GELU of float32 ``z`` by the coefficients ``Q``, constant first."""
    a = tl.minimum(tl.abs(z), 16.0)
    q = tl.full(z.shape, Q[len(Q) - 1], tl.float32)
    for i in tl.static_range(len(Q) - 2, -1, -1):
        q = q * a + Q[i]
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL) - a * tl.exp2(q)


@jit
def gelu_exact(z, FORM: tl.constexpr):
    """GELU of float32 ``z`` by the compiler's erf, or its exponential for tanh."""
    if FORM == "erf":
        return 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    else:  # noqa: RET505 - only one branch is compiled
        # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)); -2 sqrt(2 / pi) log2(e) = -2.302208198...
        return z / (1.0 + tl.exp2(-2.3022081984660163 * z * (1.0 + 0.044715 * z * z)))
