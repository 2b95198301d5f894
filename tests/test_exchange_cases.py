"""Real sessions come in with exactly their known numbers, and go out as they came."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.exchange.export import export_session
from forge_nb.exchange.load import load
from forge_nb.history import filter_compacted
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED: dict[str, dict[str, Any]] = {
    "opencode-export-1.2.20-small": {
        "messages": 5,
        "user_messages": 1,
        "parts": 22,
        "tools": {"completed": 5, "error": 1, "running": 0, "pending": 0},
        "step_finishes": 4,
        "tokens": [5, 1_206, 0, 40_956, 18_115],
        "cost": 0,
        "compactions": 0,
        "view_messages": 5,
        "warnings": {"no_rollup"},
    },
    "opencode-export-1.17.18-cost": {
        "messages": 26,
        "user_messages": 5,
        "parts": 95,
        "tools": {"completed": 25, "error": 0, "running": 0, "pending": 0},
        "step_finishes": 21,
        "tokens": [38, 71_366, 0, 1_555_785, 503_963],
        "cost": 2.2848005,
        "compactions": 0,
        "view_messages": 26,
        "warnings": {"missing_child"},
    },
    "opencode-export-1.18.1-compaction": {
        "messages": 234,
        "user_messages": 34,
        "parts": 861,
        "tools": {"completed": 184, "error": 2, "running": 1, "pending": 0},
        "step_finishes": 199,
        "tokens": [853_523, 75_798, 38_632, 15_647_065, 0],
        "cost": 0,
        "compactions": 1,
        "view_messages": 63,
        "warnings": {"running_tool", "unpriced"},
    },
}

each_export = pytest.mark.parametrize("name", sorted(EXPECTED))


def path_of(cases: Path, name: str) -> Path:
    return cases / "sessions" / f"{name}.json.gz"


@each_export
def test_counts_and_sums_are_the_known_ones(cases: Path, name: str) -> None:
    expected = EXPECTED[name]
    with open_store(":memory:") as store:
        report = load(store, path_of(cases, name))
    assert report.skipped == ()
    [session] = report.to_dict()["sessions"]
    for key in ("messages", "user_messages", "parts", "tools", "step_finishes"):
        assert session[key] == expected[key], key
    assert list(session["tokens"].values()) == expected["tokens"]
    assert session["cost_recorded_usd"] == pytest.approx(expected["cost"], abs=1e-9)
    assert session["compactions"] == expected["compactions"]
    assert session["view_messages"] == expected["view_messages"]
    assert {one["code"] for one in session["warnings"]} == expected["warnings"]


@each_export
def test_the_same_sums_come_out_of_sql(cases: Path, name: str) -> None:
    expected = EXPECTED[name]
    with Workbench(":memory:") as wb:
        wb.load(path_of(cases, name))
        row = wb.sql(
            "select count(tokens_total) as calls, sum(tokens_input) as i, sum(tokens_output) as o,"
            " sum(tokens_reasoning) as r, sum(tokens_cache_read) as cr,"
            " sum(tokens_cache_write) as cw, sum(cost_recorded_usd) as usd from steps"
        ).iloc[0]
        differing = wb.sql(
            "select * from steps where tokens_total is distinct from tokens_total_reported"
        )
    assert row["calls"] == expected["step_finishes"]
    assert [row[key] for key in ("i", "o", "r", "cr", "cw")] == expected["tokens"]
    assert row["usd"] == pytest.approx(expected["cost"], abs=1e-9)
    assert len(differing) == 0


@each_export
def test_an_export_is_equal_to_what_came_in_and_coming_in_twice_changes_nothing(
    cases: Path, name: str
) -> None:
    path = path_of(cases, name)
    original = json.loads(gzip.decompress(path.read_bytes()))
    with open_store(":memory:") as store:
        [session] = load(store, path).sessions
        assert export_session(store, session.id) == original
        assert export_session(store, session.id, as_imported=True) == original
        before = store.session(session.id)
        [again] = load(store, path).sessions
        assert again.change == "unchanged"
        assert store.session(session.id) == before


def test_the_compaction_of_a_real_session_has_its_known_sizes(cases: Path) -> None:
    with Workbench(":memory:") as wb:
        wb.load(path_of(cases, "opencode-export-1.18.1-compaction"))
        [row] = wb.compactions().to_dict("records")
        classic = list(wb.store.messages(row["session_id"]))
    assert (row["outcome"], row["trigger"], row["tail_messages"]) == ("done", "threshold", 6)
    assert (row["context_before"], row["context_after"]) == (169_394, 21_269)
    assert (row["total_before"], row["total_after"]) == (169_815, 21_446)
    assert (row["summary_tokens_in"], row["summary_tokens_out"]) == (104_846, 1_118)
    assert len(filter_compacted(classic, rule="classic")) == 57


@pytest.mark.each_case("recorded/*/store*.db.gz")
def test_a_recorded_store_comes_in_verifies_and_comes_in_once(case: Path, tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    path.write_bytes(gzip.decompress(case.read_bytes()))
    before = path.read_bytes()
    with open_store(tmp_path / "forge.db") as store:
        report = load(store, path)
        assert report.skipped == ()
        assert report.sessions
        assert [one for one in verify(store) if one.level == "failure"] == []
        assert {one.change for one in load(store, path).sessions} == {"unchanged"}
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["forge.db", "opencode.db"]


@pytest.mark.each_case("recorded/*/export-*.json.gz")
def test_a_database_gives_the_export_that_the_program_itself_gave(
    case: Path, tmp_path: Path
) -> None:
    """The recordings' exports name a folder of their own; everything else is the same."""
    theirs = json.loads(gzip.decompress(case.read_bytes()))
    path = tmp_path / "opencode.db"
    path.write_bytes(gzip.decompress((case.parent / "store.db.gz").read_bytes()))
    with open_store(":memory:") as store:
        load(store, path)
        ours = export_session(store, theirs["info"]["id"])
    ours["info"]["directory"] = theirs["info"]["directory"]
    assert ours == theirs
