"""What goes wrong around a store: other files in its place, other processes, a killed writer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from forge_nb.errors import (
    ForeignStoreError,
    SchemaVersionError,
    StoreError,
    StoreLockedError,
    UsageError,
)
from forge_nb.store import open as opening
from forge_nb.store.migrations import APPLICATION_ID, upgrade
from forge_nb.store.open import open_store
from forge_nb.store.schema import metadata
from forge_nb.store.verify import verify
from tests.contracts.store_events import SESSION, asked, conversation, said, session

ROOT = Path(__file__).parent.parent
SPAWN = multiprocessing.get_context("spawn")

WRITE_UNTIL_KILLED = """
import itertools, sys
from forge_nb.store.open import open_store
from tests.contracts.store_events import asked, said, session

store = open_store(sys.argv[1])
run = sys.argv[2]
store.apply([session()]).result()
for number in itertools.count():
    name = f"msg_{run}_{number}"
    store.apply([asked(name), said(name, "x" * 500)]).result()
    print(name, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forge.db"


# ------------------------------------------------------------------------- what is not a store


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"folder .* does not exist; make it first"):
        open_store(tmp_path / "nowhere" / "forge.db")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="a folder, not a store; name a file in it"):
        open_store(tmp_path)


@pytest.mark.parametrize("target", ["", "  ", "mysql://host/db"])
def test_a_target_that_is_no_file_is_a_mistake(target: str) -> None:
    with pytest.raises(UsageError, match="is not a file; give a path"):
        open_store(target)


def test_a_file_of_another_kind_is_left_alone(path: Path) -> None:
    path.write_text("{}")
    with pytest.raises(ForeignStoreError, match=r"forge\.db: not a forge_nb store"):
        open_store(path)
    assert path.read_text() == "{}"


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE session (id TEXT)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(ForeignStoreError, match="of another program"):
        open_store(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["forge.db"]


def test_a_newer_store_names_both_versions(path: Path) -> None:
    open_store(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 9")
    with pytest.raises(SchemaVersionError, match="upgrade forge_nb") as caught:
        open_store(path)
    assert (caught.value.found, caught.value.supported) == (9, 1)


def test_a_damaged_store_says_so(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 8_000)
    with pytest.raises(StoreError, match=r"forge\.db"):
        open_store(path)


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with open_store(path) as store:
        store.apply(conversation()).result()
        assert verify(store) == []
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_that_another_program_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_BUSY_S", 0.05)
    with open_store(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLockedError, match="another program holds the database"):
            store.apply([session()]).result()
        with pytest.raises(StoreLockedError):
            open_store(path)
        assert store.sessions() == []
        other.execute("ROLLBACK")
        store.apply([session()]).result()
        assert len(store.sessions()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_a_read_only_file_names_the_remedy(path: Path) -> None:
    open_store(path).close()
    path.chmod(0o400)
    with pytest.raises(StoreError, match="read-only; mend its permissions"):
        open_store(path)


# -------------------------------------------------------------------------------- migrations


def test_an_older_store_runs_the_steps_that_it_lacks(path: Path) -> None:
    ran: list[int] = []
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade(connection, "x")
    steps = [lambda _, n=n: ran.append(n) for n in (2, 3)]
    for expected in (1, 3):
        with engine.begin() as connection:
            assert upgrade(connection, "x", steps=steps) == expected
    engine.dispose()
    assert ran == [2, 3]


def test_a_fresh_store_has_the_newest_tables_and_runs_no_step(path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        assert upgrade(connection, "x", steps=[lambda _: pytest.fail("ran")]) == 0
        assert connection.exec_driver_sql("PRAGMA user_version").scalar_one() == 2
        assert set(sa.inspect(connection).get_table_names()) == set(metadata.tables)
    engine.dispose()


# ------------------------------------------------------------------------------ processes


def _write_many(path: str, name: str) -> int:
    with open_store(path) as store:
        store.apply([session()]).result()
        for number in range(40):
            key = f"msg_{name}_{number}"
            store.apply([asked(key), said(key, "x")]).result()
    return os.getpid()


def test_two_processes_open_a_fresh_path_and_lose_nothing(path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        writes = [pool.submit(_write_many, str(path), name) for name in ("a", "b", "c", "d")]
        for write in writes:
            write.result(timeout=60)
    with open_store(path) as store:
        assert len(store.page(SESSION, limit=500).messages) == 160
        assert store.session(SESSION).seq == 4 * 81
        assert verify(store) == []


def _open_only(path: str) -> int:
    with open_store(path) as store:
        return len(store.sessions())


def test_many_processes_open_fresh_paths_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        for attempt in range(15):
            path = str(tmp_path / f"{attempt}.db")
            opened = [pool.submit(_open_only, path) for _ in range(2)]
            assert [one.result(timeout=60) for one in opened] == [0, 0]


def _acknowledged_before_kill(path: Path, run: int) -> list[str]:
    """Start a writer, kill it after some writes, and return what it said was stored."""
    arguments = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path), str(run)]
    names: list[str] = []
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            names.append(line.strip())
            if len(names) == 20 + 7 * run % 50:
                writer.send_signal(signal.SIGKILL)
    return names


def test_what_was_acknowledged_survives_a_kill(path: Path, kill_count: int) -> None:
    runs = range(kill_count)
    acknowledged = [name for run in runs for name in _acknowledged_before_kill(path, run)]
    assert len(acknowledged) >= 20 * kill_count
    with open_store(path) as store:
        found = {item.message.id for item in store.messages(SESSION, page_size=500)}
        assert set(acknowledged) <= found
        assert all(item.parts for item in store.messages(SESSION, page_size=500))
        assert verify(store) == []


def test_leaving_without_closing_loses_nothing(path: Path) -> None:
    program = (
        "import sys\n"
        "from forge_nb.store.open import open_store\n"
        "from tests.contracts.store_events import conversation\n"
        "open_store(sys.argv[1]).apply(conversation())\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True, timeout=60)
    with open_store(path) as store:
        assert len(store.page(SESSION).messages) == 2


def test_a_forked_child_is_told_to_open_its_own(path: Path) -> None:
    program = (
        "import os, sys\n"
        "from forge_nb.errors import StoreError\n"
        "from forge_nb.store.open import open_store\n"
        "from tests.contracts.store_events import session\n"
        "store = open_store(sys.argv[1])\n"
        "store.apply([session()]).result()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        store.apply([session()])\n"
        "    except StoreError:\n"
        "        sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "assert store.apply([session()]).result()[0].seq == 2\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True, timeout=60)
    with open_store(path) as store:
        assert store.session(SESSION).seq == 2
