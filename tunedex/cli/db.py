"""`tuner db`: bring a database up to date, and see what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunedex.cli.output import DbOption, JsonOption, command_group, print_json, print_table, say

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    group = command_group("Look after the database.")
    group.command("upgrade")(upgrade)
    group.command("stats")(stats)
    group.command("check")(check)
    app.add_typer(group, name="db")


def upgrade(db: DbOption = None) -> None:
    """Bring the database to the version of this Tunedex; an embedded one is made where there is none."""
    from tunedex.db.store import upgrade_database

    name, changed = upgrade_database(db)
    say(f"database {name} is {'now' if changed else 'already'} up to date")


def stats(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Show how many rows each table has, and the size of the whole."""
    from tunedex.db import open_store
    from tunedex.db.migrate import HEAD

    with open_store(db, create=False) as store:
        counts, size, url = store.counts(), store.size_bytes(), store.url
    if as_json:
        print_json({"counts": counts, "size_bytes": size, "database": url, "schema": HEAD})
        return
    print_table(["<table", "rows"], [[name, count] for name, count in counts.items()])
    say(f"{url}: {size:,} bytes, schema {HEAD}")


def check(db: DbOption = None, as_json: JsonOption = False) -> int:
    """Check that the database fits this Tunedex and every row of it can be read; changes nothing."""
    from tunedex.db.checking import check_database
    from tunedex.db.migrate import HEAD

    found = check_database(db)
    if as_json:
        print_json({"database": found.name, "schema": HEAD, "faults": list(found.faults)})
    for fault in found.faults:
        say(fault)
    if not found.faults:
        say(f"database {found.name} is up to date, and all of it can be read")
        return 0
    count = f"{len(found.faults)} fault{'' if len(found.faults) == 1 else 's'}"
    say(
        f"database {found.name} has {count}: restore a backup, or delete the rows that cannot be read; "
        "what they said is then tuned again"
    )
    return 1
