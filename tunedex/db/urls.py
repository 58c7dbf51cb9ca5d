"""Where the database is: an argument, the setting TUNEDEX_DB, or a file in the user's data folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tunedex.core.display import secret, without_password
from tunedex.core.errors import BadInput
from tunedex.core.folders import default_database

SETTING = "TUNEDEX_DB"
_SHAPES = "a file, sqlite:///FILE or postgresql://USER@HOST/NAME"


def database_url(url: str | None = None) -> str:
    """The URL of the database: ``url``, else ``TUNEDEX_DB``, else SQLite in the user's data folder.

    A plain path is read as an SQLite file; the result of one names it absolutely.

    Raises:
        BadInput: the text names no database that Tunedex can use.
    """
    return spelled(parse(url), hide_password=False)


def spelled(url: URL, *, hide_password: bool = True) -> str:
    """``url`` as text that `parse` reads back, but for a hidden password, wherever it stands.

    A file's name is spelled here, because SQLAlchemy 2.0 and 2.1 do it in unlike ways.
    """
    if url.get_backend_name() == "sqlite":
        return "sqlite:///" + re.sub("[%?#]", lambda found: f"%{ord(found[0]):02X}", url.database or "")
    if hide_password:
        url = url.difference_update_query([name for name in url.query if secret(name)])
    return url.render_as_string(hide_password=hide_password)


def parse(url: str | None = None) -> URL:
    """`database_url` in parts.

    Raises:
        BadInput: the text names no database that Tunedex can use.
    """
    given = url if url is not None else os.environ.get(SETTING) or str(default_database())
    shown = repr(without_password(given)) if url is not None else f"{SETTING}={without_password(given)!r}"
    if not given.strip() or "\0" in given:
        raise BadInput(f"database {shown} is not {_SHAPES}", field="db")
    if "://" not in given:
        return _sqlite(given)
    scheme, _, rest = given.partition("://")
    if scheme in ("sqlite", "sqlite+pysqlite"):
        path = unquote(rest.removeprefix("/"))
        if not rest.startswith("/") or path in ("", ":memory:") or "\0" in path:
            raise BadInput(f"database {shown} names no file; it would be sqlite:///FILE", field="db")
        if "?" in rest:
            raise BadInput(f"database {shown} has options; it would be sqlite:///FILE, a ? in it as %3F", field="db")
        return _sqlite(path)
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise BadInput(f"database {shown} has an unknown scheme; it would be {_SHAPES}", field="db")
    try:
        parsed = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):
        raise BadInput(f"database {shown} is not a URL; it would be {_SHAPES}", field="db") from None
    return parsed


def embedded_path(url: str | None = None) -> Path | None:
    """The file of an embedded database; None where ``url`` names a shared one.

    Raises:
        BadInput: the text names no database that Tunedex can use.
    """
    parsed = parse(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def default_file(path: Path) -> bool:
    """Whether ``path`` is the file in the user's data folder, which is taken where nobody names a database."""
    try:
        return path == default_database().absolute()
    except RuntimeError:  # there is no home folder
        return False


def _sqlite(path: str) -> URL:
    try:
        absolute = Path(path).expanduser().absolute()
    except RuntimeError:  # "~somebody", who does not exist
        raise BadInput(f"database {path!r} is in the home of nobody; it would be {_SHAPES}", field="db") from None
    return URL.create("sqlite", database=str(absolute))
