"""What comes in, in which forms, what is said of it, and that it goes out as it came."""

from __future__ import annotations

import copy
import gzip
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.events import MessageUpdated, PartUpdated, SessionUpdated
from forge_nb.exchange.export import export_session
from forge_nb.exchange.load import load
from forge_nb.messages.message import MessageTime, UserMessage
from forge_nb.messages.parts import TextPart
from forge_nb.messages.usage import TokenUsage
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from tests.lookalikes import CREATED, SESSION, export_of, write_database, write_export

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from forge_nb.events import SyncEvent
    from forge_nb.store.base import Store

Json = dict[str, Any]


@pytest.fixture
def store() -> Generator[Store]:
    with open_store(":memory:") as opened:
        yield opened


def failures(store: Store) -> list[Any]:
    return [one for one in verify(store) if one.level == "failure"]


def codes(store: Store, path: Path) -> list[str]:
    [session] = load(store, path).sessions
    return [one.code for one in session.warnings]


def last_answer(export: Json) -> Json:
    found: Json = export["messages"][-1]
    return found


def part(export: Json, kind: str) -> Json:
    """Return the last answer's part of a kind."""
    return next(one for one in last_answer(export)["parts"] if one["type"] == kind)


# ------------------------------------------------------------------------------------- forms


def encode(export: Json) -> bytes:
    return json.dumps(export).encode()


@pytest.mark.parametrize(
    "written",
    [
        encode,
        lambda export: gzip.compress(encode(export)),
        lambda export: b"\xef\xbb\xbf" + encode(export),
        lambda export: b"Exporting session: ses_look\n" + encode(export),
        lambda export: b"\xef\xbb\xbfExporting session: ses_look\r\n\r\n" + encode(export),
        lambda export: gzip.compress(b"Exporting session: ses_look\n" + encode(export)),
        lambda export: json.dumps(export).encode("utf-16"),
        lambda export: b"\n  " + encode(export) + b"\n\n",
    ],
    ids=["plain", "gzip", "mark", "banner", "mark-banner", "gzip-banner", "utf-16", "blanks"],
)
def test_an_export_comes_in_however_it_was_written(
    store: Store, tmp_path: Path, written: Callable[[Json], bytes]
) -> None:
    export = export_of()
    path = tmp_path / "no-matter.name"
    path.write_bytes(written(export))
    report = load(store, path)
    assert report.skipped == ()
    assert export_session(store, SESSION) == export
    assert failures(store) == []


@pytest.mark.parametrize("wal", [False, True])
@pytest.mark.parametrize("has_usage", [False, True])
def test_a_database_comes_in_with_all_its_sessions(
    store: Store, tmp_path: Path, *, has_usage: bool, wal: bool
) -> None:
    exports = [export_of(session_id=f"ses_{n}", turns=n + 1) for n in range(3)]
    path = write_database(tmp_path / "opencode.db", exports, has_usage=has_usage, wal=wal)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    report = load(store, path)
    assert report.skipped == ()
    assert [one.id for one in report.sessions] == ["ses_0", "ses_1", "ses_2"]
    for export in exports:
        if not has_usage:
            del export["info"]["cost"], export["info"]["tokens"]
        assert export_session(store, export["info"]["id"]) == export
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert failures(store) == []


def test_messages_of_a_database_stand_by_time_and_parts_by_id(store: Store, tmp_path: Path) -> None:
    export = export_of(turns=2)
    path = write_database(tmp_path / "opencode.db", [export])
    first, second = (item["info"]["id"] for item in export["messages"][:2])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE message SET time_created = ? WHERE id = ?", (CREATED + 500, second)
        )
        connection.execute(
            "UPDATE message SET time_created = ? WHERE id = ?", (CREATED + 600, first)
        )
    load(store, path)
    back = export_session(store, SESSION)["messages"]
    assert [item["info"]["id"] for item in back][:2] == [second, first]
    ids = [one["id"] for one in back[0]["parts"]]
    assert ids == sorted(ids)


def test_an_export_keeps_the_order_of_its_array(store: Store, tmp_path: Path) -> None:
    export = export_of(turns=3)
    export["messages"].reverse()
    export["messages"][0]["parts"].reverse()
    load(store, write_export(tmp_path / "a.json", export))
    assert export_session(store, SESSION) == export


@pytest.mark.parametrize(
    "text", ["a\0b", "half \ud83d", "</script><b>", "\x1b[2J", "e\u0301 \u202e", "\U0001f600", ""]
)
def test_any_text_comes_back_as_it_was(store: Store, tmp_path: Path, text: str) -> None:
    export = export_of()
    part(export, "text")["text"] = text
    part(export, "tool")["state"]["output"] = text
    part(export, "tool")["state"]["input"] = {text or "k": text}
    export["info"]["title"] = text
    paths = [write_export(tmp_path / "a.json", export)]
    if "\ud83d" not in text:  # no program could have given SQLite such a title
        paths.append(write_database(tmp_path / "a.db", [export]))
    for path in paths:
        assert load(store, path).skipped == ()
        assert export_session(store, SESSION) == export
    assert failures(store) == []


def test_half_a_character_in_a_database_comes_in(store: Store, tmp_path: Path) -> None:
    export = export_of()
    part(export, "text")["text"] = "cut \ud83d"
    assert load(store, write_database(tmp_path / "a.db", [export])).skipped == ()
    assert export_session(store, SESSION) == export


def test_fields_and_kinds_that_nobody_knows_come_back(store: Store, tmp_path: Path) -> None:
    export = export_of()
    export["info"]["novel"] = {"a": [1, None]}
    last_answer(export)["info"]["novel"] = None
    part(export, "text")["novel"] = [{}]
    part(export, "tool")["state"]["novel"] = 1.5
    ids = {name: part(export, "text")[name] for name in ("messageID", "sessionID")}
    last_answer(export)["parts"].append({"id": "prt_new", **ids, "type": "hologram", "x": {}})
    path = write_export(tmp_path / "a.json", export)
    assert codes(store, path) == ["unknown_part"]
    assert export_session(store, SESSION) == export
    assert export_session(store, SESSION, as_imported=True) == export


# ------------------------------------------------------------------------------------ again


def test_the_same_file_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.json", export_of())
    load(store, path)
    before = store.session(SESSION), store.usage(SESSION)
    [session] = load(store, path).sessions
    assert session.change == "unchanged"
    assert (store.session(SESSION), store.usage(SESSION)) == before


def test_a_grown_file_brings_what_is_new(store: Store, tmp_path: Path) -> None:
    short = export_of(turns=2)
    del last_answer(short)["info"]["time"]["completed"]
    del part(short, "text")["time"]["end"]
    load(store, write_export(tmp_path / "a.json", short))
    whole = export_of(turns=3)
    [session] = load(store, write_export(tmp_path / "a.json", whole)).sessions
    assert session.change == "grown"
    assert export_session(store, SESSION) == whole
    assert failures(store) == []
    assert len(store.usage(SESSION)) == 3
    assert all(usage.finished_ms is not None for usage in store.usage(SESSION))
    assert store.session(SESSION).tokens.input == 300


def test_what_the_source_took_back_goes(store: Store, tmp_path: Path) -> None:
    load(store, write_export(tmp_path / "a.json", export_of(turns=3)))
    shorter = export_of(turns=3)
    shorter["messages"] = shorter["messages"][:-2]
    last_answer(shorter)["parts"].pop(1)
    load(store, write_export(tmp_path / "a.json", shorter))
    assert export_session(store, SESSION) == shorter
    assert failures(store) == []


def test_an_older_file_does_not_undo_a_newer_one(store: Store, tmp_path: Path) -> None:
    newer = export_of(turns=3)
    load(store, write_export(tmp_path / "new.json", newer))
    [session] = load(store, write_export(tmp_path / "old.json", export_of(turns=2))).sessions
    assert session.change == "older"
    assert [one.code for one in session.warnings] == ["older_source"]
    assert export_session(store, SESSION) == newer


def go_on(store: Store) -> None:
    """Write a question here, and rename the session."""
    info = store.session(SESSION).info
    message = UserMessage(id="msg_here", session_id=SESSION, time=MessageTime(created=CREATED))
    said = TextPart(id="prt_here", session_id=SESSION, message_id="msg_here", text="and now?")
    renamed = type(info)(id=info.id, time=info.time, title="mine")
    events: list[SyncEvent] = [
        SessionUpdated(info=renamed),
        MessageUpdated(message=message, prompt_state="waiting"),
        PartUpdated(part=said),
    ]
    store.apply(events).result()


def test_rows_that_were_written_here_stay(store: Store, tmp_path: Path) -> None:
    load(store, write_export(tmp_path / "a.json", export_of(turns=2)))
    go_on(store)
    whole = export_of(turns=3)
    load(store, write_export(tmp_path / "a.json", whole))
    assert export_session(store, SESSION, as_imported=True) == whole
    back = export_session(store, SESSION)
    assert back["info"]["title"] == "mine"
    assert "msg_here" in {item["info"]["id"] for item in back["messages"]}
    assert store.prompts(SESSION, "waiting")[0].message.id == "msg_here"
    before = store.session(SESSION)
    load(store, tmp_path / "a.json")
    assert store.session(SESSION) == before


def test_what_a_source_took_back_is_kept_where_the_session_went_on(
    store: Store, tmp_path: Path
) -> None:
    load(store, write_export(tmp_path / "a.json", export_of(turns=2)))
    go_on(store)
    shorter = export_of(turns=2)
    shorter["messages"].pop()
    assert codes(store, write_export(tmp_path / "a.json", shorter))[0] == "taken_back"
    assert len(list(store.messages(SESSION))) == 5


def test_a_session_that_was_made_here_is_not_replaced(store: Store, tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.json", export_of())
    load(store, path)
    ours = store.session(SESSION).info
    with open_store(":memory:") as other:
        other.apply([SessionUpdated(info=ours)]).result()
        [skipped] = load(other, path).skipped
    assert "was made in this store" in skipped.reason


# ------------------------------------------------------------------------------ what is said


def open_tool(status: str) -> Callable[[Json], None]:
    def change(export: Json) -> None:
        state = {"status": status, "input": {}}
        part(export, "tool")["state"] = state | (
            {"time": {"start": CREATED}} if status == "running" else {"raw": ""}
        )

    return change


def child_of_failed_task(export: Json) -> None:
    state = part(export, "tool")["state"]
    error = {"status": "error", "error": "no", "input": {}, "time": state["time"]}
    part(export, "tool")["state"] = error | {"metadata": {"sessionId": "ses_gone"}}


ODD: dict[str, Callable[[Json], Any]] = {
    "running_tool": open_tool("running"),
    "pending_tool": open_tool("pending"),
    "open_text": lambda export: part(export, "text")["time"].pop("end"),
    "open_reasoning": lambda export: part(export, "reasoning")["time"].pop("end"),
    "rollup_mismatch": lambda export: export["info"].update(cost=99),
    "missing_child": child_of_failed_task,
    "missing_parent": lambda export: export["info"].update(parentID="ses_gone"),
    "no_rollup": lambda export: (export["info"].pop("cost"), export["info"].pop("tokens")),
    "dropped": lambda export: export.update(generator="x"),
}


@pytest.mark.parametrize("code", ODD)
def test_an_oddity_is_named_and_nothing_is_mended(store: Store, tmp_path: Path, code: str) -> None:
    export = export_of()
    ODD[code](export)
    assert codes(store, write_export(tmp_path / "a.json", export)) == [code]
    export.pop("generator", None)
    assert export_session(store, SESSION) == export
    assert failures(store) == []


def test_a_plain_session_has_no_oddities(store: Store, tmp_path: Path) -> None:
    assert codes(store, write_export(tmp_path / "a.json", export_of())) == []


def test_a_child_in_the_same_file_is_not_missing(store: Store, tmp_path: Path) -> None:
    parent, child = export_of(), export_of(session_id="ses_child", parent_id=SESSION)
    part(parent, "tool")["state"]["metadata"]["sessionId"] = "ses_child"
    report = load(store, write_database(tmp_path / "a.db", [parent, child]))
    assert [one.warnings for one in report.sessions] == [(), ()]


def test_parts_whose_message_is_gone_are_named(store: Store, tmp_path: Path) -> None:
    path = write_database(tmp_path / "a.db", [export_of()])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM message WHERE id LIKE '%_1b'")
    found = codes(store, path)
    assert found.count("dropped") == 5
    assert failures(store) == []


def test_tokens_without_a_price_cost_nobody_knows_what(store: Store, tmp_path: Path) -> None:
    export = export_of(cost=0)
    assert codes(store, write_export(tmp_path / "a.json", export)) == ["unpriced"]
    assert {usage.cost.usd for usage in store.usage(SESSION)} == {None}
    assert {usage.cost_recorded_usd for usage in store.usage(SESSION)} == {0}
    assert store.session(SESSION).cost_usd is None


def test_tokens_of_a_known_model_are_priced(store: Store, tmp_path: Path) -> None:
    export = export_of(cost=0)
    for item in export["messages"][1::2]:
        item["info"] |= {"providerID": "anthropic", "modelID": "claude-sonnet-4-5"}
    assert codes(store, write_export(tmp_path / "a.json", export)) == []
    assert {usage.cost.source for usage in store.usage(SESSION)} == {"computed"}


def test_a_recorded_cost_is_taken_as_it_is(store: Store, tmp_path: Path) -> None:
    load(store, write_export(tmp_path / "a.json", export_of(cost=0.25)))
    costs = {(usage.cost.usd, usage.cost.source) for usage in store.usage(SESSION)}
    assert costs == {(0.25, "recorded")}


def test_a_report_that_was_lost_is_unknown_and_not_zero(store: Store, tmp_path: Path) -> None:
    export = export_of(turns=1)
    none = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    part(export, "step-finish").update(reason="unknown", tokens=none, cost=0)
    load(store, write_export(tmp_path / "a.json", export))
    [usage] = store.usage(SESSION)
    assert usage.tokens == TokenUsage()
    assert usage.cost.usd is None


def test_a_summary_that_failed_is_named(store: Store, tmp_path: Path) -> None:
    export = export_of()
    last_answer(export)["info"] |= {"summary": True, "mode": "compaction"}
    assert codes(store, write_export(tmp_path / "a.json", export)) == ["failed_compaction"]
    assert [usage.purpose for usage in store.usage(SESSION)] == ["turn", "compaction"]


# ---------------------------------------------------------------------------------- the rest


def test_several_paths_are_one_report(store: Store, tmp_path: Path) -> None:
    paths = [
        write_export(tmp_path / "a.json", export_of()),
        tmp_path / "nope.json",
        write_database(tmp_path / "b.db", [export_of(session_id="ses_b")]),
    ]
    report = load(store, [str(path) for path in paths])
    assert [one.id for one in report.sessions] == [SESSION, "ses_b"]
    assert [one.path for one in report.skipped] == [str(paths[1])]
    assert "skipped: " in str(report)
    assert str(report) == repr(report)


def test_progress_goes_up_to_the_size_of_the_files(store: Store, tmp_path: Path) -> None:
    paths = [
        write_export(tmp_path / "a.json", export_of(turns=5)),
        write_database(tmp_path / "b.db", [export_of(session_id=f"ses_{n}") for n in range(3)]),
    ]
    seen: list[tuple[int, int]] = []
    load(store, paths, progress=lambda done, total: seen.append((done, total)))
    size = sum(path.stat().st_size for path in paths)
    assert {total for _, total in seen} == {size}
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    assert len(seen) > len(paths) + 10


def test_a_local_session_is_exported_with_all_that_the_family_requires(
    store: Store, tmp_path: Path
) -> None:
    load(store, write_export(tmp_path / "a.json", export_of()))
    untouched = copy.deepcopy(export_session(store, SESSION))
    go_on(store)
    back = export_session(store, SESSION)
    assert back["messages"][:-1] == untouched["messages"]
    assert back["messages"][-1]["info"]["role"] == "user"
    assert back["info"]["tokens"]["input"] == 200
    assert "prompt_state" not in json.dumps(back)
