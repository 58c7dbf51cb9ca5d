"""The bundle of a self-test: one JSON document to send on, which tells of the device and of nobody.

It holds no host name, user name, path, UUID, serial number or environment variable. What is written comes from lists
of what may be told; free text, such as the message of a failed kernel, is cleaned of what names a person or a machine.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunedex.core import files
from tunedex.core.canonical import canonical_json, finite
from tunedex.core.device import Device
from tunedex.core.display import one_line

BUNDLE_FORMAT = "tunedex-selftest"
BUNDLE_VERSION = 1

#: Attributes of a device that belong to its model and its settings, not to one board.
_ATTRIBUTES = (
    "power_limit_w",
    "max_clock_mhz",
    "max_memory_clock_mhz",
    "memory_bus_bits",
    "ecc",
    "pci_device_id",
    "virtual",
    "system",
    "machine",
)

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH = re.compile(r"(?<![\w.)\]/])(?:~|[A-Za-z]:)?[/\\][^\s'\"<>|:;,()]+")
_LEAST_NAME = 2


def described(device: Device) -> dict[str, Any]:
    """``device`` as a document, with the attributes of its model alone."""
    known = {name: device.attributes[name] for name in _ATTRIBUTES if name in device.attributes}
    return {**device.to_dict(), "attributes": known}


def cleaned(text: str) -> str:
    """``text`` in one line, without paths, UUIDs, and the names of this user and this host."""
    text = one_line(text)
    for folder in _folders():
        text = text.replace(folder, "/path")
    text = _PATH.sub("<path>", _UUID.sub("<uuid>", text))
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", text, flags=re.IGNORECASE)
    return text


def check_target(path: Path) -> None:
    """See that a bundle can be written to ``path``, and that nothing but an older one would be lost.

    Raises:
        BadInput: there is something else, or no folder for it.
    """
    files.check_target(path, _is_bundle, "bundle of a self-test")


def _is_bundle(content: bytes) -> bool:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, Mapping) and found.get("format") == BUNDLE_FORMAT


def write_bundle(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` to ``path`` in canonical form, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    files.write_whole(path, f"{canonical_json(finite(document))}\n".encode())


def _folders() -> list[str]:
    """Folders whose names may hold spaces, which a pattern does not follow; the longest first."""
    folders = {tempfile.gettempdir(), sys.prefix, str(Path.cwd())}
    with contextlib.suppress(RuntimeError):  # there is no home folder
        folders.add(str(Path.home()))
    return sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True)


def _names() -> list[str]:
    """The names of this user and of this host."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0]}
    with contextlib.suppress(KeyError, OSError, RuntimeError):  # a user that the system does not know
        names |= {getpass.getuser(), Path.home().name}
    return sorted((name for name in names if len(name) >= _LEAST_NAME), key=len, reverse=True)
