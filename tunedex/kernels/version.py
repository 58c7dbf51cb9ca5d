"""A kernel's version: the hash of the tokens of the code that runs.

Comments, blank lines, line breaks and indentation width do not count. An f-string counts as its source text,
because Python 3.12 splits it into tokens and 3.11 does not; so 3.11, 3.12 and 3.13 agree.
"""

from __future__ import annotations

import hashlib
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

VERSION_HEX_DIGITS = 12

_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


def version_of(*paths: Path | str) -> str:
    """The version of the code in ``paths``, in their order: Python by its tokens, anything else (CUDA C++) by its
    words with comments removed."""
    digest = hashlib.sha256()
    for path in map(Path, paths):
        text = path.read_text(encoding="utf-8")
        for token in python_tokens(text) if path.suffix == ".py" else cuda_tokens(text):
            digest.update(token.encode() + b"\0")
        digest.update(b"\1")
    return digest.hexdigest()[:VERSION_HEX_DIGITS]


def python_tokens(source: str) -> Iterator[str]:
    """The tokens of Python ``source``, without comments and layout, f-strings whole."""
    lines = source.splitlines(keepends=True)
    starts = getattr(tokenize, "FSTRING_START", None)
    ends = getattr(tokenize, "FSTRING_END", None)
    depth, begin = 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == starts:
            if depth == 0:
                begin = token.start
            depth += 1
        elif token.type == ends:
            depth -= 1
            if depth == 0:
                yield _between(lines, begin, token.end)
        elif depth or token.type in _LAYOUT:
            continue
        elif token.type == tokenize.NEWLINE:
            yield "newline"
        elif token.type == tokenize.INDENT:
            yield "indent"
        elif token.type == tokenize.DEDENT:
            yield "dedent"
        else:
            yield token.string


def cuda_tokens(source: str) -> Iterator[str]:
    """The words of C++ ``source`` without comments; string literals are respected."""
    out: list[str] = []
    index, quote = 0, ""
    while index < len(source):
        char = source[index]
        if quote:
            out.append(char)
            if char == "\\" and index + 1 < len(source):
                out.append(source[index + 1])
                index += 1
            elif char == quote:
                quote = ""
        elif source.startswith("//", index):
            end = source.find("\n", index)
            index = len(source) if end < 0 else end
            continue
        elif source.startswith("/*", index):
            end = source.find("*/", index + 2)
            index = len(source) if end < 0 else end + 2
            out.append(" ")
            continue
        else:
            quote = char if char in "\"'" else ""
            out.append(char)
        index += 1
    yield from "".join(out).split()


def _between(lines: list[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from ``begin`` to ``end``, each a (line from 1, column)."""
    if begin[0] == end[0]:
        return lines[begin[0] - 1][begin[1] : end[1]]
    inner = lines[begin[0] : end[0] - 1]
    return "".join([lines[begin[0] - 1][begin[1] :], *inner, lines[end[0] - 1][: end[1]]])
