"""GELU, exactly and as one fitted exponential, for every language the kernels are written in.

Both forms of GELU are x * Phi(x) with Phi(-a) = 1 - Phi(a), so

    gelu(x) = max(x, 0) - |x| * Phi(-|x|)        Phi(-a) = 2^Q(a)

erf:  Phi(a) = (1 + erf(a / sqrt 2)) / 2         (Hendrycks and Gimpel, arXiv:1606.08415)
tanh: Phi(a) = (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))) / 2

log2 Phi(-a) is smooth and close to a parabola, so that a short polynomial Q serves: one exponential and a handful
of multiply-adds, where erf takes twice as many instructions. Q is the polynomial that makes the largest
|a * 2^Q(a) - a * Phi(-a)| over 0 <= a <= 5.5 least; its last coefficient is negative and Q falls all the way, so
beyond 5.5 the term vanishes as it should. The largest errors of the term, with coefficients rounded to float32:

    erf   degree 5  4.4e-7      degree 8  7e-9
    tanh  degree 5  4.6e-6      degree 8  6e-8

Degree 5 is for float16 and bfloat16, whose own rounding is 2^-11 and 2^-8; degree 8 is for float32.
"""

from __future__ import annotations

import math

from tunedex.kernels.jit import jit, tl

FORMS = ("erf", "tanh")

LOG2_E = math.log2(math.e)

#: The coefficients of Q, constant first, by form and degree.
_FITTED = {
    ("erf", 5): (
        -1.000037670135498,
        -1.1507878303527832,
        -0.4599926471710205,
        -0.05182718113064766,
        0.0070844655856490135,
        -0.0004732946399599314,
    ),
    ("erf", 8): (
        -0.9999988675117493,
        -1.151123285293579,
        -0.4591154456138611,
        -0.05271419882774353,
        0.0073333848267793655,
        -0.00032334247953258455,
        -0.00011446254939073697,
        2.5083281798288226e-05,
        -1.690399699327827e-06,
    ),
    ("tanh", 5): (
        -1.0003643035888672,
        -1.1482893228530884,
        -0.46537789702415466,
        -0.04737720638513565,
        0.00871889665722847,
        -0.00197707861661911,
    ),
    ("tanh", 8): (
        -1.000010371208191,
        -1.1509134769439697,
        -0.4603913128376007,
        -0.04808920621871948,
        0.002339852973818779,
        0.0047557782381772995,
        -0.002822637325152755,
        0.0005198157741688192,
        -3.3149703085655347e-05,
    ),
}


def fitted(form: str, dtype: str) -> tuple[float, ...]:
    """The coefficients of Q, constant first, for GELU's ``form`` (``erf``, ``tanh``) and a result of ``dtype``."""
    return _FITTED[form, 8 if dtype == "float32" else 5]


@jit
def gelu_fitted(z, Q: tl.constexpr):
    """GELU of float32 ``z`` by the coefficients ``Q``, constant first."""
    a = tl.abs(z)
    q = tl.full(z.shape, Q[len(Q) - 1], tl.float32)
    for i in tl.static_range(len(Q) - 2, -1, -1):
        q = q * a + Q[i]
    return tl.maximum(z, 0.0) - a * tl.exp2(q)


@jit
def gelu_exact(z, FORM: tl.constexpr):
    """GELU of float32 ``z`` by the compiler's erf, or its exponential for tanh."""
    if FORM == "erf":
        return 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    else:  # noqa: RET505 - only one branch is compiled
        # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)); -2 sqrt(2 / pi) log2(e) = -2.302208198...
        return z / (1.0 + tl.exp2(-2.3022081984660163 * z * (1.0 + 0.044715 * z * z)))
