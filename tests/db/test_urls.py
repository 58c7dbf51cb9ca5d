"""Where the database is: an argument, the setting, the user's data folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedex.core.errors import BadInput
from tunedex.db.engine import name_of
from tunedex.db.urls import database_url, embedded_path, parse, spelled


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEDEX_DB", raising=False)


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("/data/t.db", "sqlite:////data/t.db"),
        ("sqlite:////data/t.db", "sqlite:////data/t.db"),
        ("sqlite+pysqlite:////data/t.db", "sqlite:////data/t.db"),
        ("sqlite:////data/50%25%3F.db", "sqlite:////data/50%25%3F.db"),
        ("/data/ü 50%?.db", "sqlite:////data/ü 50%25%3F.db"),
        ("postgresql://ann:secret@db.example/tunedex", "postgresql+psycopg://ann:secret@db.example/tunedex"),
        ("postgres://db.example/tunedex", "postgresql+psycopg://db.example/tunedex"),
        ("postgresql+psycopg://db.example:5433/t", "postgresql+psycopg://db.example:5433/t"),
    ],
)
def test_a_url_or_a_file_is_read(given_url: str, url: str) -> None:
    assert database_url(given_url) == url


def test_a_relative_file_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert embedded_path("t.db") == tmp_path / "t.db"
    assert embedded_path("sqlite:///t.db") == tmp_path / "t.db"


def test_the_argument_comes_before_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEDEX_DB", "postgresql://db.example/fleet")
    assert database_url() == "postgresql+psycopg://db.example/fleet"
    assert embedded_path() is None
    assert database_url("/data/t.db") == "sqlite:////data/t.db"


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG base directories are Linux's")
def test_the_default_is_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert embedded_path() == tmp_path / ".local/share/tunedex/tunedex.db"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert embedded_path() == tmp_path / ".local/share/tunedex/tunedex.db"
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/data")
    assert embedded_path() == Path("/srv/data/tunedex/tunedex.db")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "  ",
        "a\0b",
        "mysql://db.example/t",
        "http://db.example",
        "postgresql+asyncpg://db.example/t",
        "postgresql://db.example:port/t",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///t.db?mode=ro",
        "sqlite:///t%00.db",
        "sqlite://db.example/t",
        "://",
        "~nobody-of-this-name/t.db",
    ],
)
def test_what_names_no_database_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(BadInput, match=r"it would be|is not") as caught:
        parse(wrong)
    assert "\n" not in str(caught.value)
    assert caught.value.field == "db"


@pytest.mark.parametrize(
    "wrong",
    [
        "mysql://ann:secret@db.example/t",
        "postgresql://ann:secret@db.example:port/t",
        "postgresql://db.example:port/t?password=secret",
        "postgresql://ann:secret@db.example/\0",
        "sqlite://ann:secret@db.example/t",
    ],
)
def test_a_password_is_not_repeated(wrong: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(wrong)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:secret@db.example/t?sslmode=require",
        "postgresql://db.example/t?user=ann&password=secret&sslmode=require",
        "postgresql://db.example/t?Pass%77ord=secret&sslmode=require",
    ],
)
def test_a_url_is_shown_without_its_password_wherever_it_stands(url: str) -> None:
    for shown in (spelled(parse(url)), name_of(parse(url))):
        assert "secret" not in shown
        assert "db.example/t?" in shown
        assert "sslmode=require" in shown
    assert "secret" in database_url(url)


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEDEX_DB", " ")
    with pytest.raises(BadInput, match="TUNEDEX_DB"):
        parse()


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/~"), min_size=1).filter(lambda text: text.strip()))
def test_any_file_name_is_kept(name: str) -> None:
    path = Path("/data") / name
    if name in (".", "..") or "://" in name:
        return
    assert embedded_path(database_url(str(path))) == path
