"""The command line: exit codes, JSON shapes, one line per error, nothing written by mistake."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.__main__ import main
from forge_nb.messages.steps import message_of_step
from forge_nb.store.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "notebooks" / "data" / "parser-fix.json"
SESSION = json.loads(DATA.read_text("utf-8"))["info"]["id"]


class Ran:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


@pytest.fixture
def forge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["forge-nb", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


def test_import_prints_counts_and_is_idempotent(forge: Callable[..., Ran]) -> None:
    ran = forge("import", DATA, "--json")
    assert ran.code == 0
    [session] = json.loads(ran.out)["sessions"]
    assert list(session) == [
        "id",
        "messages",
        "user_messages",
        "parts",
        "tools",
        "step_finishes",
        "tokens",
        "cost_recorded_usd",
        "compactions",
        "view_messages",
        "warnings",
    ]
    assert (session["messages"], session["compactions"], session["view_messages"]) == (85, 3, 14)
    assert list(session["tools"]) == ["completed", "error", "running", "pending"]
    assert list(session["tokens"]) == ["input", "output", "reasoning", "cache_read", "cache_write"]
    assert forge("import", DATA).out.startswith("unchanged")


def test_some_paths_skipped_is_exit_code_one_and_none_in_is_two(forge: Callable[..., Ran]) -> None:
    ran = forge("import", DATA, "nope.json", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["skipped"] == [
        {"path": "nope.json", "reason": "nope.json: no such file; mend the path"}
    ]
    assert forge("import", "nope.json").code == 2


def test_export_gives_back_what_came_in(forge: Callable[..., Ran], tmp_path: Path) -> None:
    forge("import", DATA)
    original = json.loads(DATA.read_text("utf-8"))
    assert json.loads(forge("export", SESSION).out) == original
    forge("export", SESSION[:10], "-o", "out.json")
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == original


def test_view_prints_what_the_model_got(forge: Callable[..., Ran]) -> None:
    forge("import", DATA)
    seen = json.loads(forge("view", SESSION, "--at", 39, "--json").out)
    assert list(seen) == ["session", "at", "rule", "messages"]
    assert (seen["session"], seen["rule"]) == (SESSION, "tail")
    first = seen["messages"][0]
    assert list(first) == ["id", "role", "parts"]
    assert [(p["kind"], p["text"]) for p in first["parts"]] == [
        ("compaction", "What did we do so far?")
    ]
    with open_store("forge.db") as store:
        message_id = message_of_step(list(store.messages(SESSION))[::-1], 39)
    by_id = json.loads(forge("view", SESSION, "--at", message_id, "--json").out)
    assert by_id["messages"] == seen["messages"]


@pytest.mark.parametrize("style", ["table", "csv", "json"])
def test_sql_prints_rows(forge: Callable[..., Ran], style: str) -> None:
    forge("import", DATA)
    ran = forge("sql", "select count(*) as n from steps", "--format", style)
    assert ran.code == 0
    assert "64" in ran.out
    if style == "json":
        assert json.loads(ran.out) == [{"n": 64}]


def test_run_streams_and_goes_on_with_a_session(forge: Callable[..., Ran]) -> None:
    first = forge("run", "Hi", "--model", "scripted:hello")
    assert first.code == 0
    assert "Hello. This is a scripted model" in first.out
    session = first.out.rsplit("session ", 1)[1].strip()
    again = forge("run", "Again", "--model", "scripted:echo", "--session", session)
    assert "Again" in again.out
    assert json.loads(forge("sql", "select count(*) as n from sessions", "--format", "json").out)[
        0
    ] == {"n": 1}


def test_verify_is_clean_on_an_imported_and_continued_store(forge: Callable[..., Ran]) -> None:
    forge("import", DATA)
    forge("run", "Go on", "--model", "scripted:hello", "--session", SESSION)
    ran = forge("verify")
    assert ran.code == 0
    assert " 0 failures" in ran.out


def test_a_damaged_store_fails_verification(forge: Callable[..., Ran]) -> None:
    forge("import", DATA)
    with closing(sqlite3.connect("forge.db")) as connection:
        connection.execute("UPDATE part SET tokens_input = 1 WHERE type = 'step-finish'")
        connection.commit()
    ran = forge("verify")
    assert ran.code == 1
    assert "failure" in ran.out


# ---------------------------------------------------------------------------------- bad input


def make_cut(path: Path) -> None:
    path.write_text(DATA.read_text("utf-8")[:5_000], "utf-8")


def make_wrong(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)


def make_empty(path: Path) -> None:
    path.touch()


def make_folder(path: Path) -> None:
    path.mkdir()


def make_locked(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE session (id)")
    connection.execute("BEGIN EXCLUSIVE")
    LOCKS.append(connection)


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE shopping (id)")


def make_junk(path: Path) -> None:
    path.write_bytes(b"{" + b"\0junk" * 1_000_000)


def make_other_json(path: Path) -> None:
    path.write_text('{"name": "package", "version": "1"}', "utf-8")


def make_cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(DATA.read_bytes())[:2_000])


def make_bad_part(path: Path) -> None:
    export = json.loads(DATA.read_text("utf-8"))
    export["messages"][4]["parts"][0]["text"] = 7
    export["messages"][4]["parts"][0]["type"] = "text"
    path.write_text(json.dumps(export), "utf-8")


def make_twice(path: Path) -> None:
    export = json.loads(DATA.read_text("utf-8"))
    export["messages"].append(export["messages"][0])
    path.write_text(json.dumps(export), "utf-8")


LOCKS: list[sqlite3.Connection] = []
BAD: list[Any] = [
    make_cut,
    make_wrong,
    make_empty,
    make_folder,
    make_locked,
    make_foreign,
    make_junk,
    make_other_json,
    make_cut_gzip,
    make_bad_part,
    make_twice,
]


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__[5:])
def test_a_bad_source_is_one_line_that_names_it_and_changes_nothing(
    forge: Callable[..., Ran], make: Callable[[Path], None], tmp_path: Path
) -> None:
    forge("import", DATA)
    path = tmp_path / "source"
    make(path)
    with open_store("forge.db") as store:
        before = store.sessions()
    ran = forge("import", path)
    while LOCKS:
        LOCKS.pop().close()
    assert ran.code == 2
    assert ran.err.startswith(f"forge-nb: {path}: ")
    assert ran.err.count("\n") == 1
    with open_store("forge.db") as store:
        assert store.sessions() == before


def make_newer(path: Path) -> None:
    open_store(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    "make",
    [make_wrong, make_folder, make_locked, make_foreign, make_newer],
    ids=lambda make: make.__name__[5:],
)
def test_a_bad_store_is_one_line_that_names_it(
    forge: Callable[..., Ran], make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    make(path)
    before = path.read_bytes() if path.is_file() and not LOCKS else b""
    ran = forge("import", DATA, "--db", path)
    while LOCKS:
        LOCKS.pop().close()
    assert ran.code == 2
    assert str(path) in ran.err
    assert ran.err.count("\n") == 1
    if before:
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("sql", "drop table steps"),
        ("sql", "select * from read_csv('/etc/passwd')"),
        ("view", "nobody"),
        ("view", SESSION, "--at", 999),
        ("export", "nobody"),
        ("run", "hi", "--model", "nobody:x"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    forge: Callable[..., Ran], arguments: tuple[object, ...]
) -> None:
    forge("import", DATA)
    ran = forge(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("forge-nb: ")
    assert ran.err.count("\n") == 1


def test_terminal_escapes_in_a_session_are_shown_and_not_obeyed(
    forge: Callable[..., Ran], tmp_path: Path
) -> None:
    export = json.loads(DATA.read_text("utf-8"))
    export["info"]["title"] = "clear\x1b[2Jscreen\0"
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(export), "utf-8")
    ran = forge("import", path)
    assert ran.code == 0
    assert "\x1b" not in ran.out + forge("sessions").out


def test_the_reader_of_a_pipe_may_leave_early() -> None:
    command = f"{sys.executable} -m forge_nb --help | head -1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602  a pipe is the point
    assert "Traceback" not in ran.stderr


def test_a_call_that_is_tried_again_says_so_in_the_terminal(forge: Callable[..., Ran]) -> None:
    ran = forge("run", "go", "--model", "scripted:flaky")
    assert ran.code == 0
    assert "[attempt 1 failed, trying again: the model is overloaded]" in ran.out
    assert "[attempt 2 failed, trying again" in ran.out
    assert "The third attempt came through" in ran.out
