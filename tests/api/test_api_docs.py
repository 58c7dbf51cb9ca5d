"""The interface's own documentation: offline, in OpenAPI 3.0, and true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from pydantic import BaseModel

from tunedex.api import schemas

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
RECOMMENDATION = schemas.RecommendationDocument


class Addresses(HTMLParser):
    """Every address that a page loads, and every script that stands in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.found += [value for name in ("src", "href") if (value := attributes.get(name))]
        self.inline += tag == "script" and "src" not in attributes


def test_the_docs_page_needs_no_network(quiet_site: Any) -> None:
    reply = quiet_site.get("/docs")
    page = Addresses(reply.text)

    assert not re.search(r"https?://|//[a-z]", reply.text)
    assert page.inline == 0
    assert any(address.endswith("swagger-ui-bundle.js") for address in page.found)
    for address in page.found:
        served = quiet_site.get(address)
        assert served.status_code == 200, address
        assert served.content
    script = quiet_site.get("/static/docs.js").text
    assert "validatorUrl: null" in script
    assert "http" not in script


def test_every_reference_of_the_document_leads_somewhere(quiet_site: Any) -> None:
    document = quiet_site.get("/openapi.json").json()

    assert document["openapi"] == "3.0.3"
    text = json.dumps(document)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        place = document
        for part in reference.split("/"):
            place = place[part]
        assert place
    for newer in ('"null"', '"const"', '"$defs"', '"prefixItems"', '"exclusiveMinimum"'):
        assert newer not in text  # Swagger UI 4 reads 3.0


def test_the_document_names_every_route_with_its_errors(quiet_site: Any) -> None:
    paths = quiet_site.get("/openapi.json").json()["paths"]

    lists = {f"/v1/{name}" for name in ("devices", "kernels", "bests", "trials", "sweeps", "misses")}
    others = {"/v1/lookup", "/v1/lookup:batch", "/v1/recommend", "/v1/snapshot", "/healthz", "/readyz", "/metrics"}
    others.add("/v1/sweeps/{number}/curves")
    assert set(paths) == lists | others
    for operations in paths.values():
        for operation in operations.values():
            assert operation["summary"]
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            assert "422" not in operation["responses"]
    lookup = {parameter["name"] for parameter in paths["/v1/lookup"]["get"]["parameters"]}
    assert {"kernel", "device", "dtype", "objective", "max_error", "max_latency_us", "max_memory"} <= lookup
    assert {"policy", "same_bits", "channel", "revision", "layout", "alignment"} <= lookup
    assert "requestBody" in paths["/v1/misses"]["post"]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (f"/v1/lookup?kernel=scale_rows&device={GPU_KEY}&rows=1024&cols=256&dtype=bf16", schemas.AnswerDocument),
        (f"/v1/lookup?kernel=scale_rows&device={GPU_KEY}&rows=7&cols=256&dtype=bf16", schemas.AnswerDocument),
        (f"/v1/recommend?kernel=scale_rows&device={GPU_KEY}&rows=1024&cols=256&dtype=bf16", RECOMMENDATION),
        (f"/v1/recommend?kernel=scale_rows&device={GPU_KEY}&rows=7&cols=256&dtype=bf16", RECOMMENDATION),
        ("/v1/lookup?kernel=nope&device=x", schemas.ErrorSchema),
        ("/nothing", schemas.ErrorSchema),
        ("/v1/bests", schemas.ListReply),
        ("/v1/devices", schemas.ListReply),
        ("/v1/sweeps/1/curves", schemas.CurvesReply),
    ],
)
def test_replies_have_the_documented_shape(quiet_site: Any, path: str, model: type[BaseModel]) -> None:
    model.model_validate(quiet_site.get(path).json(), strict=True)


def test_a_batch_has_the_documented_shape(quiet_site: Any) -> None:
    document = quiet_site.get("/openapi.json").json()
    content = document["paths"]["/v1/lookup:batch"]["post"]["requestBody"]["content"]["application/json"]

    reply = quiet_site.post("/v1/lookup:batch", content["example"])

    assert reply.status_code == 200
    schemas.BatchReply.model_validate(reply.json(), strict=True)
    for query in content["example"]["queries"]:
        schemas.BatchQuery.model_validate(query)


def test_the_server_loads_neither_torch_nor_the_tuner_s_packages() -> None:
    heavy = ("torch", "optuna", "triton", "numba", "numpy", "tunedex.kernels", "tunedex.tuner", "tunedex.client")
    code = f"import sys, tunedex.api; sys.exit(', '.join(name for name in {heavy!r} if name in sys.modules) or 0)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert (result.returncode, result.stderr) == (0, "")
