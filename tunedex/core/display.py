"""Numbers and addresses as people are shown them, one way on the command line, in pages and in messages."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from urllib.parse import unquote_plus

from tunedex.core.device import Environment

_HOST = re.compile(r"(\[[^\]]*\]|[^:@]*)(:[0-9]*)?")
_PARAMETER = re.compile(r"(?P<lead>[?&])(?P<name>[^=&#]*)=[^&#]*")
#: How each part of an environment is called.
_VERSIONS = {
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "triton": "Triton",
    "numba": "numba",
    "python": "Python",
}
#: Control characters, which terminals obey and PostgreSQL refuses (NUL), and the lone surrogates that stand for bytes
#: which are not UTF-8, a compiler's or a path's.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SECRETS = frozenset({"password", "sslpassword", "token", "api_key", "key", "secret"})


def one_line(text: object) -> str:
    """The words of an error for a line of their own, which can be printed and stored: every run of white space is one
    space, and U+FFFD stands for what is no text. An error that cannot even be told says so."""
    try:
        words = str(text)
    except Exception:  # noqa: BLE001 - the code of whoever made the error
        words = "its message cannot be read"
    words = words.partition("\nException raised from ")[0]  # torch's C++ errors end in their stack
    return _NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", " ".join(words.split()))


def time_words(value_us: float | None, *, micro: str = "us") -> str:
    """A time to three digits with its unit, ``1.25 ms``; "" where there is none. ``micro`` spells microseconds."""
    if value_us is None or not math.isfinite(value_us):
        return ""
    # A value goes to the next unit where three digits of it would read 1000.
    scale, unit = (1.0, micro) if value_us < 999.5 else (1e3, "ms") if value_us < 999.5e3 else (1e6, "s")
    return f"{three_digits(value_us / scale)} {unit}"


def bytes_words(count: float) -> str:
    """A size to three digits with its unit, ``23.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} EiB"


def three_digits(value: float) -> str:
    """Three digits of ``value``, two decimals at most and with no exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def environment_words(key: str, environment: Environment | None) -> str:
    """An environment by the versions that are known of it and by its key, which answers name it by."""
    return f"{versions(environment)} ({key})"


def versions(environment: Environment | None) -> str:
    """The versions that are known, for example ``torch 2.13.0, CUDA 13.0``; ``unknown`` where none is."""
    environment = environment or Environment()
    known = [(_VERSIONS[part.name], getattr(environment, part.name)) for part in fields(environment)]
    return ", ".join(f"{label} {version}" for label, version in known if version) or "unknown"


def without_password(address: str) -> str:
    """``address`` as a message may show it: without user and password, the parameters that name a secret masked.

    Reads any text. In one that is no address, a password may hold what ends a host, so everything up to the last @
    goes; one without ``://`` comes back as it is.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    if "@" in rest and not _HOST.fullmatch(re.split("[/?#]", rest, maxsplit=1)[0]):
        rest = rest.rpartition("@")[2]
    return f"{scheme}://{_PARAMETER.sub(_masked, rest)}"


def secret(name: str) -> bool:
    """Whether a parameter of that name, as an address spells it, holds what nobody else may read."""
    return unquote_plus(name).lower() in _SECRETS


def _masked(parameter: re.Match[str]) -> str:
    return f"{parameter['lead']}{parameter['name']}=***" if secret(parameter["name"]) else parameter[0]
