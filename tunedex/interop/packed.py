"""JSON documents in files, plain or gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunedex.core.canonical import finite
from tunedex.core.errors import BadInput
from tunedex.core.files import DOCUMENT_BYTES, read_bounded, write_whole

_GZIP = b"\x1f\x8b"


def read_document(path: Path, loads: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        BadInput: the file cannot be read, or holds something else.
    """
    try:
        return document_in(read_bounded(path), loads)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", field="file") from error
    except ValueError as error:
        raise BadInput(f"{path} {error}", field="file") from error


def document_in(content: bytes, loads: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """The JSON object in the bytes of a file.

    Raises:
        ValueError: they are something else; the message goes on after the file's name.
    """
    try:
        document = loads(_unpacked(content).decode())
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8 text") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("is no JSON object")
    return document


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all, packed where the name ends in ``.gz``; numbers that are not finite become
    null. Equal documents give equal files.

    Raises:
        OSError: it cannot be written.
    """
    content = json.dumps(finite(document), separators=(",", ":")).encode() + b"\n"
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _unpacked(content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        return content
    unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = unpack.decompress(content, DOCUMENT_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"is a damaged gzip file: {error}") from None
    if len(found) > DOCUMENT_BYTES:
        raise ValueError(f"has more than {DOCUMENT_BYTES} bytes when unpacked")
    if not unpack.eof:
        raise ValueError("is a gzip file that was cut")
    return found
