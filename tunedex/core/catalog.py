"""The signatures of the built-in kernels as data, for whoever has no kernel code: server, client, command line.

``catalog.json`` beside this file is written by ``python -m tunedex.kernels.catalog``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from tunedex.core.signature import Signature

CATALOG_FORMAT = "tunedex-catalog"
CATALOG_VERSION = 1
CATALOG_FILE = "catalog.json"


@cache
def builtin_signatures() -> tuple[Signature, ...]:
    """The signature of every built-in kernel, in the registry's order."""
    document = json.loads(resources.files("tunedex.core").joinpath(CATALOG_FILE).read_text(encoding="utf-8"))
    return tuple(Signature.from_dict(kernel) for kernel in document["kernels"])
