"""Every error of every route is one document, and every reply carries the security headers."""

from __future__ import annotations

import logging
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tunedex.api import Settings
from tunedex.api.problem_json import KINDS

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
DOCS = Path(__file__).parents[2] / "docs" / "http.md"
MEMBERS = {"type", "title", "status", "detail", "instance"}
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/lookup/", 404),
        ("GET", "/v2/lookup", 404),
        ("GET", "/static/nothing.css", 404),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e/app.py", 404),
        ("GET", "/static/docs/nothing.js", 404),
        ("POST", "/v1/lookup", 405),
        ("DELETE", "/v1/misses", 405),
        ("PUT", "/", 405),
        ("POST", "/static/style.css", 405),
        ("GET", "/v1/lookup:batch", 405),
        ("GET", "/devices/name:unknown", 404),
        ("GET", "/devices/nonsense", 422),
        ("GET", f"/devices/{GPU_KEY}?channel=x", 422),
        ("GET", f"/devices/{GPU_KEY}?page=0", 422),
        ("GET", f"/devices/{GPU_KEY}?page=1&page=2", 422),
        ("GET", "/v1/lookup", 422),
        ("GET", "/v1/snapshot", 422),
    ],
)
def test_an_error_is_a_problem_document(quiet_site: Any, method: str, path: str, status: int) -> None:
    reply = quiet_site.request(method, path)

    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/problem+json"
    document = reply.json()
    assert set(document) - {"errors"} == MEMBERS
    assert document["status"] == status
    assert all(isinstance(document[name], str) and document[name] for name in MEMBERS - {"status"})
    assert document["instance"].startswith("/")


def test_a_method_that_is_not_taken_names_those_that_are(quiet_site: Any) -> None:
    assert quiet_site.request("DELETE", "/v1/lookup").headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/devices", "/static/style.css", "/docs"])
def test_head_is_get_without_the_body(quiet_site: Any, path: str) -> None:
    got, head = quiet_site.get(path), quiet_site.request("HEAD", path)

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == got.headers


def test_head_of_nothing_is_404(quiet_site: Any) -> None:
    reply = quiet_site.request("HEAD", "/nothing")

    assert (reply.status_code, reply.content) == (404, b"")


@pytest.mark.parametrize(
    ("content", "media_type", "status", "kind"),
    [
        (b"{", "application/json", 400, "malformed-body"),
        (b"", "application/json", 422, "bad-input"),
        (b"null", "application/json", 422, "bad-input"),
        (b"[]", "application/json", 422, "bad-input"),
        (b'"x"', "application/json", 422, "bad-input"),
        (b"\xff\xfe\x00", "application/json", 400, "malformed-body"),
        (b"[" * 100_000, "application/json", 400, "malformed-body"),
        (b"1" * 10_000, "application/json", 400, "malformed-body"),
        (b"{}", "text/plain", 415, "not-json"),
        (b"{}", "application/x-www-form-urlencoded", 415, "not-json"),
        (b"{}", "", 415, "not-json"),
        (b"{}", "application/json; charset=utf-8", 422, "bad-input"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/lookup:batch", "/v1/misses"])
def test_a_body_that_cannot_be_read_is_refused(
    quiet_site: Any, path: str, content: bytes, media_type: str, status: int, kind: str
) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    reply = quiet_site.request("POST", path, content=content, headers=headers)

    assert (reply.status_code, reply.json()["type"]) == (status, f"/problems#{kind}")
    assert reply.headers["content-type"] == "application/problem+json"


def test_a_body_is_bounded_whether_its_length_is_told_or_not(open_site: Any) -> None:
    async def chunks() -> Any:
        for _ in range(3):
            yield b'"' + b"x" * 500

    with open_site(Settings(body_bytes=1000)) as site:
        headers = {"Content-Type": "application/json"}
        for content in (b"x" * 1001, chunks()):
            reply = site.request("POST", "/v1/lookup:batch", content=content, headers=headers)
            assert (reply.status_code, reply.json()["type"]) == (413, "/problems#too-large")
        assert site.request("POST", "/v1/lookup:batch", content=b"x" * 1000, headers=headers).status_code == 400


def test_a_fault_of_the_server_tells_nothing_of_itself(empty_site: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def boom() -> None:
        raise ValueError("the secret is 42")

    app: FastAPI = empty_site.app
    app.add_api_route("/boom", boom)

    with caplog.at_level(logging.ERROR):
        reply = empty_site.get("/boom")

    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/problem+json")
    assert reply.json()["type"] == "/problems#internal"
    assert "42" not in reply.text
    assert "Traceback" not in reply.text
    assert "the secret is 42" in caplog.text  # the log has it, with the traceback
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert 'route="/boom",status="500"' in empty_site.get("/metrics").text


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/devices", "/nothing", "/static/style.css", "/metrics"])
def test_every_reply_has_the_security_headers(quiet_site: Any, path: str) -> None:
    headers = quiet_site.get(path).headers

    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert "script-src" not in headers["content-security-policy"]  # so scripts are the server's own files only
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "cache-control" in headers


def test_a_browser_gets_an_error_as_a_page(quiet_site: Any) -> None:
    reply = quiet_site.get("/devices/name:unknown", headers=BROWSER)

    assert (reply.status_code, reply.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "never measured" in reply.text
    assert quiet_site.get("/v1/lookup", headers=BROWSER).headers["content-type"] == "application/problem+json"


def test_what_a_caller_sends_is_escaped_in_an_error_page(quiet_site: Any) -> None:
    reply = quiet_site.get("/devices/<script>alert(1)</script>", headers=BROWSER)

    assert reply.status_code == 422
    assert "<script>" not in reply.text


def test_the_page_of_kinds_explains_every_kind(quiet_site: Any) -> None:
    page = unescape(quiet_site.get("/problems").text)

    for kind in KINDS.values():
        assert f'id="{kind.name}"' in page
        assert kind.remedy in page


def test_the_documentation_lists_every_kind() -> None:
    text = DOCS.read_text(encoding="utf-8")

    for kind in KINDS.values():
        assert f"| `{kind.name}` | {kind.status} |" in text
