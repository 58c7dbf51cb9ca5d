"""The dashboard: what it shows, and that it is proper HTML."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from tunedex.api import Settings, views
from tunedex.core.device import Device

GPU_KEY = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements with their attributes, the text of each cell by row, and every link; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute is given twice in {tag}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "br" and {"td", "th"} & set(self._open):
            self.rows[-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data.replace("\xa0", " ")

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(site: Any, path: str, **parameters: Any) -> Page:
    reply = site.get(path, parameters or None)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.text.startswith("<!DOCTYPE html>")
    return Page(reply.text)


@pytest.mark.parametrize("path", ["/", f"/devices/{GPU_KEY}", "/problems"])
def test_a_page_is_complete_and_stays_on_its_host(quiet_site: Any, path: str) -> None:
    shown = page(quiet_site, path)

    assert shown.all("html") == [{"lang": "en"}]
    assert len(shown.all("title")) == len(shown.all("h1")) == len(shown.all("main")) == 1
    assert any(meta.get("name") == "viewport" for meta in shown.all("meta"))
    assert shown.all("a")[0]["href"] == "#main"  # the skip link comes first
    assert shown.all("script") == []
    assert shown.all("style") == []
    assert not any("style" in attributes or "onclick" in attributes for _, attributes in shown.elements)
    addresses = [attributes.get(name) for _, attributes in shown.elements for name in ("href", "src", "action")]
    assert not [a for a in addresses if a and ("//" in a or a.startswith(("http", "data", "javascript")))]
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for attributes in shown.all("div"):
        assert attributes.get("aria-labelledby", "main") in ids
    for attributes in shown.all("label"):
        assert attributes["for"] in ids


@pytest.mark.parametrize("path", ["/", f"/devices/{GPU_KEY}"])
def test_a_table_has_a_caption_and_headed_rows_and_columns(quiet_site: Any, path: str) -> None:
    shown = page(quiet_site, path)

    assert len(shown.all("table")) == len(shown.all("caption")) == 1
    scopes = [attributes.get("scope") for attributes in shown.all("th")]
    assert set(scopes) == {"col", "row"}
    assert {len(row) for row in shown.rows} == {scopes.count("col")}
    assert scopes.count("row") == len(shown.rows) - 1


def test_every_file_that_a_page_names_is_served(quiet_site: Any) -> None:
    shown = page(quiet_site, "/")

    for link in [*(a["href"] for a in shown.all("link")), *(a["href"] for a in shown.all("a"))]:
        assert link is not None
        assert quiet_site.get(link).status_code == 200


def test_the_start_page_of_an_empty_database_says_what_to_do(empty_site: Any) -> None:
    shown = page(empty_site, "/")

    assert "tuner sweep" in shown.text
    assert shown.all("table") == []


def test_the_start_page_lists_the_devices(site: Any, cpu: Device) -> None:
    site.store.register_device(cpu)

    shown = page(site, "/")

    _, gpu_row, cpu_row = shown.rows
    assert gpu_row[0].split() == ["NVIDIA", "H200", GPU_KEY]
    assert gpu_row[1] == "hopper"
    assert gpu_row[2] == "sm_90, 132 multiprocessors, 140 GiB memory, 60 MiB L2, 227 KiB shared memory"
    assert gpu_row[3:8] == ["1", "2", "1.00×", "1.50×", "1"]
    assert cpu_row[0].startswith("Some <Model> & Co")  # escaped on the page
    assert cpu_row[3:] == ["0", "0", "–", "–", "0", "–"]
    links = [attributes["href"] for attributes in shown.all("a")]
    assert f"/devices/{GPU_KEY}" in links


def test_a_device_s_page_shows_the_best_of_each_problem(quiet_site: Any) -> None:
    shown = page(quiet_site, f"/devices/{GPU_KEY}")

    head, first, second = shown.rows
    assert dict(zip(head, first, strict=True)) == {
        "Kernel": "scale_rows",
        "Problem": "rows 1024, cols 256 bfloat16, mode plain",
        "Config": "triton block 64",
        "Best": "10.0 µs",
        "Default, gain": "15.0 µs 1.50×",
        "Library, gain": "20.0 µs 2.00×",
        "Roofline": "75 %",
        "Error": "1.0e-3",
        "Measured (UTC)": "2026-01-31 12:34, eager-cold "
        "driver 580.1, CUDA 13.0, torch 2.13.0, Triton 3.7.1, Python 3.11",
    }
    assert second[1].startswith("rows 2048")
    assert "stable, revision 1" in shown.text
    numbers = [attributes for attributes in shown.all("td") if attributes.get("class") == "number"]
    assert len(numbers) == 2 * 5


def test_a_device_with_nothing_published_says_what_to_do(site: Any, cpu: Device) -> None:
    site.store.register_device(cpu)

    shown = page(site, f"/devices/{cpu.key}")

    assert "tuner sweep" in shown.text
    assert shown.all("table") == []


def test_what_is_only_a_candidate_is_said_to_be(site: Any, publish: Callable[..., int]) -> None:
    publish(site.store, 5.0, block=16)
    site.store.rollback(1, GPU_KEY)

    stable, candidate = (page(site, f"/devices/{GPU_KEY}", channel=name) for name in ("stable", "candidate"))

    assert "candidate is at revision 2" in stable.text
    assert {"href": "?channel=candidate"} in stable.all("a")
    assert stable.rows[1][2] == "triton block 64"
    assert candidate.rows[1][2] == "triton block 16"


def test_problems_come_in_pages_and_by_kernel(open_site: Any, fill: Any) -> None:
    with open_site(Settings(fresh_s=0, page_rows=1)) as site:
        fill(site.store)
        first, last = (page(site, f"/devices/{GPU_KEY}", page=number) for number in (1, 99))
        assert first.rows[1][1].startswith("rows 1024")
        assert last.rows[1][1].startswith("rows 2048")
        assert "page 1 of 2" in first.text
        (following,) = [a["href"] for a in first.all("a") if a.get("rel") == "next"]
        assert page(site, f"/devices/{GPU_KEY}{following}").rows == last.rows
        assert "No problem of softmax" in page(site, f"/devices/{GPU_KEY}", kernel="softmax").text


def test_old_and_imported_rows_are_flagged(site: Any, publish: Callable[..., int]) -> None:
    publish(site.store, 5.0, kernel_version="v0", source="imported", environment="elsewhere", library_us=None)

    row = page(site, f"/devices/{GPU_KEY}").rows[1]

    assert "older version" in row[0]
    assert "imported, unverified" in row[8]
    assert "unknown" in row[8]
    assert row[5] == "– –"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.5, "0.50 µs"),
        (9.996, "10.0 µs"),
        (99.96, "100 µs"),
        (999.4, "999 µs"),
        (999.6, "1.00 ms"),
        (1234567.0, "1.23 s"),
    ],
)
def test_a_time_has_three_digits_and_its_unit(value: float | None, text: str) -> None:
    assert views.time_us(value) == text
