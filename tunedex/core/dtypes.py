"""Data types by name: spelled as torch spells them, without its prefix."""

from __future__ import annotations

from dataclasses import dataclass

from tunedex.core.errors import BadInput


@dataclass(frozen=True)
class Dtype:
    """A floating-point or integer type.

    ``significand_bits`` counts the hidden bit (IEEE 754's precision p), so one rounding errs by at most 2^-p.
    """

    name: str
    bits: int
    significand_bits: int

    @property
    def bytes(self) -> int:
        return (self.bits + 7) // 8

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of one rounding to nearest, 2^-p; 0 for integers."""
        return 2.0**-self.significand_bits if self.significand_bits else 0.0


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("float64", 64, 53),
        Dtype("float32", 32, 24),
        Dtype("float16", 16, 11),
        Dtype("bfloat16", 16, 8),
        Dtype("float8_e4m3fn", 8, 4),
        Dtype("float8_e5m2", 8, 3),
        Dtype("int8", 8, 0),
        Dtype("int4", 4, 0),
    )
}

ALIASES: dict[str, str] = {
    "fp64": "float64",
    "double": "float64",
    "f64": "float64",
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
    "i8": "int8",
    "i4": "int4",
}


def dtype_name(text: object) -> str:
    """The stored spelling of a dtype: a name, an alias, ``torch.bfloat16`` as text or as the object.

    Raises:
        BadInput: there is no such dtype.
    """
    name = str(text).strip().lower().removeprefix("torch.")
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        raise BadInput(f"dtype {str(text)!r} is unknown; known are {', '.join(DTYPES)}", field="dtype")
    return name
