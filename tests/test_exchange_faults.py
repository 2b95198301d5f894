"""Files that are damaged, hostile, or something else: one clear error, and nothing is written."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import sqlite3
import threading
import tracemalloc
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.exchange.export import export_session
from forge_nb.exchange.load import load
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from tests.lookalikes import SESSION, export_of, write_database, write_export

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from forge_nb.store.base import Store

Json = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store]:
    """A store that holds one session already."""
    with open_store(":memory:") as opened:
        assert load(opened, write_export(tmp_path / "held.json", export_of())).skipped == ()
        yield opened


def state_of(store: Store) -> Any:
    """Return all that an import could change."""
    rows = store.sessions()
    return rows, [list(store.messages(row.info.id)) for row in rows]


def refused(store: Store, path: Path) -> str:
    """Return why a path was skipped; nothing came in."""
    before = state_of(store)
    report = load(store, path)
    assert report.sessions == ()
    assert state_of(store) == before
    [skipped] = report.skipped
    assert skipped.reason.startswith(f"{path}: ")
    assert "\n" not in skipped.reason
    return skipped.reason


def longer() -> Json:
    """Return the held session with two more turns."""
    return export_of(turns=4)


# ------------------------------------------------------------------------------ damaged JSON


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_cut_off_json(store: Store, tmp_path: Path, share: float) -> None:
    whole = json.dumps(longer())
    path = tmp_path / "cut.json"
    path.write_text(whole[: max(1, int(len(whole) * share))])
    assert "damaged or cut-off JSON" in refused(store, path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_cut_off_compressed_file(store: Store, tmp_path: Path, share: float) -> None:
    packed = gzip.compress(json.dumps(longer()).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: int(len(packed) * share)])
    assert "compressed file is damaged or cut off" in refused(store, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"text": "ask 3"', "stands twice"),
        ('"cost": 1e999', "too large"),
        ('"cost": NaN', "NaN is no JSON"),
        (f'"x": {"[" * 100_000}', "damaged or cut-off JSON"),
        (f'"x": {"1" * 10_000}', "damaged or cut-off JSON"),
    ],
    ids=["duplicate-key", "infinite", "nan", "deep", "digits"],
)
def test_json_that_could_not_be_given_back(
    store: Store, tmp_path: Path, text: str, reason: str
) -> None:
    whole = json.dumps(longer())
    path = tmp_path / "odd.json"
    path.write_text(whole.replace('"text": "ask 3"', f'"text": "ask 3", {text}'))
    assert reason in refused(store, path)


def test_text_that_is_no_utf_8(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "latin.json"
    path.write_bytes(json.dumps(longer()).replace("ask 3", "caf\xe9").encode("latin-1"))
    assert "text is damaged" in refused(store, path)


WRONG: list[tuple[str, Callable[[Json], Any]]] = [
    ("$.messages[1].parts[3].text", lambda e: e["messages"][1]["parts"][3].update(text=7)),
    (
        "$.messages[1].parts[2].state",
        lambda e: e["messages"][1]["parts"][2]["state"].pop("output"),
    ),
    ("$.messages[0].info", lambda e: e["messages"][0]["info"].update(role="robot")),
    ("$.messages[2].info", lambda e: e["messages"][2]["info"].pop("time")),
    ("$.info", lambda e: e["info"].pop("id")),
    ("$.messages[3]", lambda e: e["messages"][3]["info"].update(sessionID="ses_other")),
    ("$.messages[1]", lambda e: e["messages"][1]["parts"][0].update(messageID="msg_other")),
    ("$.messages[8]", lambda e: e["messages"].append(e["messages"][0])),
    ("$.messages[1]", lambda e: e["messages"][1]["parts"].append(e["messages"][1]["parts"][0])),
    ("$.messages[4]", lambda e: e["messages"][4].pop("parts")),
    ("$.messages", lambda e: e.update(messages={})),
]


@pytest.mark.parametrize(("place", "change"), WRONG, ids=[f"{n}" for n in range(len(WRONG))])
def test_a_wrong_row_is_named_by_its_place(
    store: Store, tmp_path: Path, place: str, change: Callable[[Json], Any]
) -> None:
    export = longer()
    change(export)
    assert place in refused(store, write_export(tmp_path / "wrong.json", export))


@pytest.mark.parametrize("created", [-(10**18), -5, 10**15, 10**18, 2**70])
def test_a_time_that_cannot_be_is_kept_and_priced_all_the_same(
    store: Store, tmp_path: Path, created: int
) -> None:
    export = export_of(session_id="ses_odd", cost=0)
    for item in export["messages"]:
        item["info"]["time"]["created"] = created
        item["info"] |= {"providerID": "anthropic", "modelID": "claude-sonnet-4-5"}
    assert load(store, write_export(tmp_path / "odd.json", export)).skipped == ()
    assert export_session(store, "ses_odd") == export
    assert [one for one in verify(store) if one.level == "failure"] == []


# --------------------------------------------------------------------------- something else


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n",
        b"[1, 2]",
        b"hello",
        b"\xff\xfe",
        b"Exporting session: x\n",
        b"Exporting session: x",
        b"\x1f\x8b",
        b"{}",
        b'{"name": "package"}',
        b'{"info": 1, "messages": 2}',
        b"null",
        gzip.compress(b"plain text"),
        gzip.compress(b""),
        b"SQLite format 3\x00",
        b"SQLite format 3\x00" + b"\xff" * 5_000,
    ],
)
def test_another_kind_of_file(store: Store, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert refused(store, path)


@pytest.mark.parametrize("head", [b"", b'{"junk": "', b"{" + b" " * 200_000, b"{\0"])
def test_a_large_file_of_junk_is_not_read(store: Store, tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(head + b"x" * 5_000_000)
    tracemalloc.start()
    try:
        assert "export" in refused(store, path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_an_empty_file_a_folder_nothing_and_a_pipe(store: Store, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert "is empty" in refused(store, tmp_path / "empty")
    assert "a folder" in refused(store, tmp_path / "folder")
    assert "no such file" in refused(store, tmp_path / "nothing")
    assert "not a regular file" in refused(store, tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(store: Store, tmp_path: Path) -> None:
    path = write_export(tmp_path / "mine.json", longer())
    path.chmod(0)
    assert "Permission denied" in refused(store, path)


# --------------------------------------------------------------------------------- databases


def test_a_database_of_another_program(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE session (id)")
    assert "without columns ['time_created', 'time_updated'] in 'session'" in refused(store, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE session")
    assert refused(store, path)


def test_our_own_store_is_not_a_source(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "forge.db"
    with open_store(path) as other:
        load(other, tmp_path / "held.json")
    assert "a forge_nb store" in refused(store, path)


def test_a_database_that_somebody_holds(store: Store, tmp_path: Path) -> None:
    path = write_database(tmp_path / "a.db", [longer()])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "another program holds the database; close it" in refused(store, path)
        other.execute("COMMIT")
    assert load(store, path).skipped == ()


def test_a_database_in_use_with_a_log_is_read_and_not_disturbed(
    store: Store, tmp_path: Path
) -> None:
    path = write_database(tmp_path / "a.db", [longer()], wal=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM part")  # not committed
        assert load(store, path).skipped == ()
        other.execute("ROLLBACK")
        assert other.execute("SELECT count(*) FROM part").fetchone()[0] == 24
    assert export_session(store, SESSION) == longer()


def test_a_program_that_writes_all_the_time_is_read_at_one_moment(
    store: Store, tmp_path: Path
) -> None:
    path = write_database(tmp_path / "a.db", [longer()], wal=True)
    stop = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            while not stop.wait(0.002):
                other.execute("INSERT INTO from_the_future VALUES (1, 2)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        report = load(store, path)
    finally:
        stop.set()
        writer.join()
    assert report.sessions or "without a pause" in report.skipped[0].reason


BAD_ROWS = {
    "cut JSON": "UPDATE part SET data = substr(data, 1, 20) WHERE rowid = 9",
    "no object": "UPDATE part SET data = '[1]' WHERE rowid = 9",
    "no JSON at all": "UPDATE message SET data = x'00ff' WHERE rowid = 3",
    "a number": "UPDATE message SET data = 7 WHERE rowid = 3",
    "a wrong type": """UPDATE message SET data = '{"role": "user"}' WHERE rowid = 3""",
    "a wrong column": "UPDATE session SET time_created = 'noon' WHERE id = 'ses_b'",
    "a wrong setting": "UPDATE session SET permission = '{' WHERE id = 'ses_b'",
}


@pytest.mark.parametrize("damage", BAD_ROWS)
def test_one_bad_row_keeps_the_whole_database_out(
    store: Store, tmp_path: Path, damage: str
) -> None:
    """The first session is whole and its rows were written when the second one fails."""
    exports = [export_of(session_id="ses_a", turns=1), export_of(session_id="ses_b", turns=2)]
    path = write_database(tmp_path / "a.db", exports)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(BAD_ROWS[damage])
    assert refused(store, path)


def test_a_database_cut_short(store: Store, tmp_path: Path) -> None:
    path = write_database(tmp_path / "a.db", [export_of(turns=40)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in refused(store, path)


# ------------------------------------------------------------------------------------- chance


def test_whatever_happens_to_a_file_it_comes_in_whole_or_not_at_all(
    tmp_path: Path, fuzz_count: int
) -> None:
    """Bytes are damaged, and values replaced; `FORGE_FUZZ` says how often."""
    original = longer()
    path = tmp_path / "fuzzed.json"
    for seed in range(fuzz_count):
        chance = random.Random(seed)
        damage = _flip if seed % 3 == 0 else _replace
        path.write_bytes(damage(original, chance))
        with open_store(":memory:") as store:
            load(store, tmp_path / "fuzzed.json" if seed % 2 else write_export(path, original))
            before = state_of(store)
            path.write_bytes(damage(original, chance))
            report = load(store, path)
            assert [one for one in verify(store) if one.level == "failure"] == [], seed
            if report.skipped:
                assert state_of(store) == before, seed
            else:
                assert [export_session(store, one.id) for one in report.sessions], seed


def _flip(original: Json, chance: random.Random) -> bytes:
    raw = bytearray(json.dumps(original).encode())
    for _ in range(chance.randint(1, 8)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw)


def _replace(original: Json, chance: random.Random) -> bytes:
    export = copy.deepcopy(original)
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        2**63,
        2**70,
        1.5,
        "",
        "\0",
        "\ud800",
        [],
        {},
        [[]],
        {"a": None},
    ]
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(list(_places(export)))
        holder[key] = chance.choice(values)
    return json.dumps(export).encode()


def _places(value: Any) -> Generator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
