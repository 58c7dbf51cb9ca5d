"""Numbers and addresses as people are shown them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.cli.output import microseconds
from tunedex.core.device import Environment
from tunedex.core.display import bytes_words, one_line, time_words, versions, without_password


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 us"),
        (0.5, "0.50 us"),
        (9.994, "9.99 us"),
        (9.996, "10.0 us"),
        (99.96, "100 us"),
        (999.4, "999 us"),
        (999.6, "1.00 ms"),
        (999_499.0, "999 ms"),
        (999_600.0, "1.00 s"),
        (12_345_678.0, "12.3 s"),
        (3e9, "3000 s"),
    ],
)
def test_a_time_has_three_digits_and_its_unit(value: float, text: str) -> None:
    assert time_words(value) == microseconds(value) == text
    assert time_words(value, micro="µs") == text.replace("us", "µs")


@pytest.mark.parametrize(
    ("count", "text"),
    [(512, "512 bytes"), (2**20, "1 MiB"), (23.5 * 2**30, "23.5 GiB"), (3.2e18, "2.78 EiB"), (4e21, "3.47e+03 EiB")],
)
def test_a_size_has_three_digits_and_its_unit(count: float, text: str) -> None:
    assert bytes_words(count) == text


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_no_time_has_no_words(value: float | None) -> None:
    assert (time_words(value), microseconds(value)) == ("", "-")


@settings(max_examples=200, deadline=None)
@given(st.floats(1.0, 1e9))
def test_below_a_thousand_seconds_no_figure_reaches_a_thousand_or_loses_a_digit(value: float) -> None:
    number, unit = time_words(value).split()
    assert "e" not in number
    assert float(number) <= 999 or unit == "s"
    scale = {"us": 1.0, "ms": 1e3, "s": 1e6}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://host:1/path?a=b", "https://host:1/path?a=b"),
        ("https://user:secret@host:1/path?a=b", "https://host:1/path?a=b"),
        ("http://secret@[::1]:8421", "http://[::1]:8421"),
        ("http://host:8421/x@y", "http://host:8421/x@y"),
        ("postgresql://u:se/c?r#et@host/t", "postgresql://host/t"),
        ("postgresql://u:se@cret@host/t", "postgresql://host/t"),
        ("postgresql://host/t?user=u&password=secret&x=1", "postgresql://host/t?user=u&password=***&x=1"),
        ("postgresql://host/t?Pass%77ord=secret", "postgresql://host/t?Pass%77ord=***"),
        ("http://host?token=secret#part", "http://host?token=***#part"),
        ("a file@home.db", "a file@home.db"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert without_password(address) == shown


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        (
            Environment("580.1", "13.0", "2.13.0", "3.7.1", "0.61.2", "3.12"),
            "driver 580.1, CUDA 13.0, torch 2.13.0, Triton 3.7.1, numba 0.61.2, Python 3.12",
        ),
        (Environment(torch="2.13.0", python="3.12"), "torch 2.13.0, Python 3.12"),
        (Environment(), "unknown"),
        (None, "unknown"),
    ],
)
def test_an_environment_is_its_known_versions(environment: Environment | None, shown: str) -> None:
    assert versions(environment) == shown


class Untold(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError(" two\n\tlines \x0b "), "two lines"),
        (ValueError("naïve 漢"), "naïve 漢"),
        (ValueError("a NUL \0"), "a NUL \ufffd"),
        (ValueError("\x1b[31mred\x1b[0m \x9b1m"), "\ufffd[31mred\ufffd[0m \ufffd1m"),
        (ValueError(b"/tmp/\xff.cu".decode(errors="surrogateescape")), "/tmp/\ufffd.cu"),
        (Untold(), "its message cannot be read"),
        (
            RuntimeError("no memory\nException raised from malloc at a.cpp:1 (most recent call first):\nframe"),
            "no memory",
        ),
    ],
    ids=["lines", "letters", "nul", "escapes", "bytes", "untold", "stack"],
)
def test_the_words_of_an_error_can_be_printed_and_stored(error: Exception, words: str) -> None:
    assert one_line(error) == words
    assert one_line(error).encode()
