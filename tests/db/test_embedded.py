"""SQLite files as they come: missing, foreign, damaged, read-only, shared by processes, killed while written."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from db_examples import DEVICE, ENVIRONMENT, VERSION, fill, problem, row, trial

from tunedex.core.errors import BadInput, DatabaseError
from tunedex.db import Store, open_store

WORKER = Path(__file__).with_name("db_worker.py")

#: The checkout comes first, so that the workers run where Tunedex is not installed.
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(WORKER.parents[2]), *sys.path])}


def start(url: str | Path, task: str, number: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(WORKER), str(url), task, str(number)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRON,
    )


def finish(process: subprocess.Popen[str]) -> list[int]:
    """The numbers that a worker printed, once it has ended well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [int(line) for line in out.split()]


def stored(store: Store) -> set[int | None]:
    trials = store.trials_of(problem().key, device=DEVICE.key, environment=ENVIRONMENT.key, kernel_version=VERSION)
    return {found.id for found in trials}


def test_the_folder_is_made_and_the_file_is_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "ünd noch einer?" / "t.db"
    with open_store(str(path)) as store:
        assert store.embedded
        store.check()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.touch()
    with open_store(str(path)) as store:
        assert store.counts()["trials"] == 0


def test_a_file_that_is_replaced_is_followed(tmp_path: Path) -> None:
    paths = [tmp_path / "t.db", tmp_path / "other.db"]
    for path, blocks in zip(paths, ([64], [32, 16]), strict=True):
        with open_store(str(path)) as store:
            fill(store)
            for block in blocks:
                store.publish(DEVICE.key, {problem(): [row(block)]})
    with open_store(str(paths[0])) as store:
        assert store.current_revision(DEVICE.key) == 1
        paths[1].replace(paths[0])
        assert store.current_revision(DEVICE.key) == 2
        assert store.publish(DEVICE.key, {problem(): [row(8)]}) == 3
        paths[0].unlink()
        assert store.current_revision(DEVICE.key) == 3


def test_nothing_is_made_where_none_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="there is no database"):
        open_store(str(tmp_path / "t.db"), create=False)
    with pytest.raises(BadInput, match="there is no folder"):
        open_store(str(tmp_path / "a" / "t.db"), create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"\x93\x00random bytes" * 100, b"{}", b"SQLite format 3\0" + b"\xff" * 500])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(content)
    with pytest.raises(DatabaseError) as caught:
        open_store(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="is a directory"):
        open_store(str(tmp_path))


@pytest.mark.parametrize("path", ["/proc/tunedex/t.db", "/dev/null/t.db", f"/tmp/{'n' * 300}"])
def test_a_place_that_cannot_be_written_is_refused(path: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        open_store(path)
    assert "/" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that any user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="tunedex-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


#: Root may write everywhere, so it becomes nobody, once all that it imports is loaded.
READ = """
import os, sys
from tunedex.core.device import Environment
from tunedex.core.errors import DatabaseError
from tunedex.db import open_store
if os.geteuid() == 0:
    with open_store(sys.argv[1]) as store:
        store.snapshot(sys.argv[2])
    os.setgid(65534); os.setuid(65534)
with open_store(sys.argv[1]) as store:
    rows = store.snapshot(sys.argv[2]).rows
    sys.stdout.write(f"{store.counts()['trials']} {len(rows)} ")
    try:
        store.register_environment(Environment(driver='new'))
    except DatabaseError as error:
        sys.stdout.write(str(error))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the users of a Unix system")
@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_file_that_cannot_be_written_is_read(public_folder: Path, folder_mode: int) -> None:
    path = public_folder / "t.db"
    with open_store(str(path)) as store:
        fill(store)
        store.add_trial(trial())
        store.publish(DEVICE.key, {problem(): [row()]})
    path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    public_folder.chmod(folder_mode)
    try:
        result = subprocess.run(
            [sys.executable, "-c", READ, str(path), DEVICE.key],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=ENVIRON,
        )
    finally:
        public_folder.chmod(0o755)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("1 1 ")
    assert "readonly database" in result.stdout


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a Unix signal")
def test_a_killed_writer_loses_no_trial_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with open_store(str(path)) as store:
        fill(store)
    writer = start(path, "write", 1_000_000)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(120)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate(timeout=60)
    # A last line may be cut short by the kill; the numbers before it were printed whole.
    told += [int(line) for line in rest.split("\n")[:-1]]
    with open_store(str(path)) as store:
        assert set(told) <= stored(store)
        store.check()
        assert store.add_trial(trial()) > max(told)


def test_several_processes_make_one_database_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "t.db"
    at = int((time.time() + 2) * 1000)
    numbers = [finish(worker) for worker in [start(path, "open", at) for _ in range(4)]]
    assert sorted(numbers) == [[1], [2], [3], [4]]
    with open_store(str(path)) as store:
        assert store.counts()["trials"] == 4


def test_writers_and_a_reader_do_not_stop_each_other(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with open_store(str(path)) as store:
        fill(store)
    reader = start(path, "poll", 2)
    writers = [start(path, "write", 250) for _ in range(2)]
    told = [number for writer in writers for number in finish(writer)]
    seen = finish(reader)
    assert seen == sorted(seen)
    with open_store(str(path)) as store:
        assert set(told) == stored(store)
    assert len(told) == 500


def test_a_writer_waits_for_another_program_that_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with open_store(str(path)) as store:
        fill(store)
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        assert store.counts()["trials"] == 0
        release = threading.Timer(1.5, lambda: holder.execute("COMMIT"))
        release.start()
        assert store.add_trial(trial()) == 1
        release.join()
        holder.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(sqlite_store: Store) -> None:
    sqlite_store.add_trial(trial())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sqlite_store.add_trial(trial())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sqlite_store.add_trial(trial()) == 3
    assert sqlite_store.counts()["trials"] == 3


def test_tables_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.execute("INSERT INTO recipes VALUES ('bread')")
    connection.commit()
    connection.close()
    with open_store(str(path)) as store:
        fill(store)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM recipes").fetchall() == [("bread",)]
    connection.close()
