"""A problem file: the problems of somebody's program, as `tuner profile` writes and `tuner sweep` reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunedex.core import files
from tunedex.core.canonical import read_json
from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.core.question import parameters_in, with_work
from tunedex.kernels.registry import get_kernel

FORMAT = "problems"
VERSION = 1


@dataclass(frozen=True)
class ProblemFile:
    """``problems`` come with the one that takes the most time first; ``device_key`` is where they were seen, "" where
    the file does not tell."""

    problems: tuple[Problem, ...]
    device_key: str = ""


def read_problems(path: Path) -> ProblemFile:
    """The problems in ``path``, each once.

    Raises:
        BadInput: the file is not there, is no problem file, or an entry is wrong; the message names the place.
        UnknownKernel: an entry is of a kernel that is not installed.
    """
    document = _read(path)
    entries = document.get("problems")
    if not isinstance(entries, list):
        raise _wrong(path, "problems is not a list")
    if not entries:
        raise _wrong(path, "problems is empty, so there is nothing to tune")
    shares: dict[Problem, float] = {}
    for number, entry in enumerate(entries):
        place = f"problems[{number}]"
        try:
            problem, share = _problem(entry), _share(entry)
        except BadInput as error:
            raise type(error)(f"{path}: {place}: {error}", field="problems") from None
        shares[problem] = shares.get(problem, 0.0) + share
    device = document.get("device")
    key = device.get("key") if isinstance(device, dict) else None
    return ProblemFile(tuple(sorted(shares, key=lambda problem: -shares[problem])), key if isinstance(key, str) else "")


def check_target(path: Path) -> None:
    """See that a problem file can be written to ``path``, and that nothing but an older one would be lost.

    Raises:
        BadInput: there is something else, or no folder for it.
    """

    def is_problem_file(content: bytes) -> bool:
        try:
            _document(path, content)
        except BadInput:
            return False
        return True

    files.check_target(path, is_problem_file, "problem file")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return _document(path, files.read_bounded(path))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", field="problems") from error


def _document(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        document = read_json(content.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise _wrong(path, f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("tunedex") != FORMAT:
        raise _wrong(path, f'not a problem file, which has "tunedex": "{FORMAT}"')
    if document.get("version") != VERSION or document["version"] is True:
        raise _wrong(path, f"version {document.get('version')!r} is not {VERSION}, which this Tunedex reads")
    return document


def _problem(entry: Any) -> Problem:
    if not isinstance(entry, dict) or not isinstance(entry.get("kernel"), str):
        raise BadInput("has no kernel")
    signature = get_kernel(entry["kernel"]).signature
    direct = {name: entry[name] for name in ("layout", "alignment") if name in entry}
    return with_work(signature.problem(parameters_in(signature, entry) | direct))


def _share(entry: Mapping[str, Any]) -> float:
    share = entry.get("share", 0.0)
    try:
        number = float(share) if isinstance(share, int | float) and not isinstance(share, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise BadInput(f"share {repr(share)[:40]} is not a number of at least 0")
    return number


def _wrong(path: Path, what: str) -> BadInput:
    return BadInput(f"{path}: {what}", field="problems")
