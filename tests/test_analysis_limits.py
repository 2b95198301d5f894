"""What a query may not do, and what the frames stay true to on any machine and for any file."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from forge_nb.analysis import frames
from forge_nb.analysis.mirror import Mirror
from forge_nb.analysis.query import run_sql
from forge_nb.errors import StoreError, UsageError
from forge_nb.store.open import open_store
from forge_nb.testing import memory_workbench
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
DATA = ROOT / "notebooks" / "data" / "parser-fix.json"
HUGE = 2**100

WRITER = """
import sys
from forge_nb.events import MessageRemoved, SessionUpdated
from forge_nb.store.open import open_store
import msgspec
with open_store(sys.argv[1]) as store:
    info = store.sessions()[0].info
    newest = next(store.messages(info.id)).message
    renamed = msgspec.structs.replace(info, title="renamed elsewhere")
    store.apply([
        SessionUpdated(info=renamed),
        MessageRemoved(session_id=info.id, message_id=newest.id),
    ]).result()
    print(newest.id)
"""

ZONES = """
import sys
from forge_nb.testing import memory_workbench
with memory_workbench() as wb:
    wb.load(sys.argv[1])
    print(wb.steps()["started_at"].dtype)
    print(wb.sql("select max(started_at) as t from steps")["t"].dtype)
    print(wb.sql("select current_setting('TimeZone') as zone")["zone"][0])
"""


@pytest.fixture(scope="module")
def loaded() -> Iterator[Workbench]:
    with memory_workbench() as wb:
        wb.load(DATA)
        yield wb


def python(code: str, *arguments: str, **environment: str) -> list[str]:
    """Run code in a process of its own; returns the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split("\n")[:-1]


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write the example session with a change."""
    export = json.loads(DATA.read_text("utf-8"))
    change(export)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(export), "utf-8")
    return path


def doubled(part: dict[str, Any]) -> dict[str, Any]:
    twin = copy.deepcopy(part)
    twin["id"] = part["id"][:-1] + ("Z" if part["id"][-1] != "Z" else "Y")
    return twin


@pytest.mark.parametrize(
    "query",
    [
        "explain analyze delete from session_row",
        "explain (analyze, format json) delete from session_row",
        "explain analyze update session_row set title = 'mine'",
        "explain analyze insert into session_row select * from session_row",
        "explain analyze create table mine as select 1 as a",
        "explain analyze drop view steps",
        "with gone as (delete from session_row returning *) select count(*) as n from gone",
        "with made as (insert into session_row select * from session_row returning *) from made",
    ],
)
def test_a_write_inside_a_statement_that_reads_is_refused(loaded: Workbench, query: str) -> None:
    before = loaded.sessions()
    with pytest.raises(UsageError, match="read-only"):
        loaded.sql(query)
    pd.testing.assert_frame_equal(loaded.sessions(), before)
    assert len(loaded.steps()) == 64


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_leaving_the_read_only_transaction_opens_nothing(loaded: Workbench, word: str) -> None:
    loaded.sql(f"explain analyze {word}")
    with pytest.raises(UsageError, match="read-only"):
        loaded.sql("explain analyze delete from session_row")


def test_a_query_has_no_folder_to_leave_rows_in(loaded: Workbench) -> None:
    folder = loaded.sql("select current_setting('temp_directory') as folder")["folder"]
    assert list(folder) == [""]


def test_a_frame_of_the_caller_cannot_be_named_in_a_query(loaded: Workbench) -> None:
    mine = pd.DataFrame({"a": [1]})
    with pytest.raises(UsageError, match="mine does not exist"):
        loaded.sql("select * from mine")
    assert len(mine) == 1


def test_a_pivot_says_what_it_needs_and_then_runs(loaded: Workbench) -> None:
    with pytest.raises(UsageError, match="IN"):
        loaded.sql("pivot steps on outcome using count(*)")
    rows = loaded.sql(
        "select * from (select outcome from steps)"
        " pivot (count(*) for outcome in ('completed', 'aborted'))"
    )
    assert list(rows.columns) == ["completed", "aborted"]


def test_parameters_go_by_name_too(loaded: Workbench) -> None:
    query = "select count(*) as n from steps where step between $first and $last"
    assert list(run_sql(loaded.mirror, query, {"first": 2, "last": 4})["n"]) == [3]


@pytest.mark.parametrize(
    ("expression", "dtype", "value"),
    [
        ("1::smallint", "Int64", 1),
        ("1::utinyint", "Int64", 1),
        ("1.5", "Float64", 1.5),
        ("1.5::float", "Float64", 1.5),
        (f"{2**64 - 1}::ubigint", "UInt64", 2**64 - 1),
        (f"{HUGE}::hugeint", "Float64", float(HUGE)),
        ("interval '90 seconds'", "timedelta64[us]", pd.Timedelta(seconds=90)),
        ("timestamp '2026-03-02' - timestamp '2026-03-01'", "timedelta64[us]", pd.Timedelta("1D")),
        ("timestamptz '2026-03-01 12:00+05'", "datetime64[us, UTC]", "2026-03-01 07:00+00:00"),
    ],
)
def test_a_value_of_any_width_has_the_dtype_of_its_kind(
    loaded: Workbench, expression: str, dtype: str, value: Any
) -> None:
    column = loaded.sql(f"select {expression} as x union all select null")["x"]
    assert str(column.dtype) == dtype
    assert column.isna().sum() == 1
    expected = pd.Timestamp(value) if isinstance(value, str) else value
    assert column.dropna().tolist() == [expected]


def test_a_span_that_counts_months_stays_one(loaded: Workbench) -> None:
    [span] = loaded.sql("select interval '5 months' as x")["x"]
    assert span.kwds["months"] == 5


def test_times_are_utc_wherever_the_machine_stands() -> None:
    said = python(ZONES, str(DATA), TZ="America/New_York")
    assert said == ["datetime64[us, UTC]", "datetime64[us, UTC]", "UTC"]


def test_a_mirror_sees_what_another_process_changed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with Workbench(path) as wb:
        wb.load(DATA)
        mirror = Mirror(wb.store)
        before = frames.messages(mirror)
        [gone] = python(WRITER, str(path))
        assert mirror.refresh() > 0
        assert list(frames.sessions(mirror)["title"]) == ["renamed elsewhere"]
        assert set(before["id"]) - set(frames.messages(mirror)["id"]) == {gone}
        assert gone not in set(frames.parts(mirror)["message_id"])
        assert mirror.refresh() == 0


def test_threads_that_refresh_at_once_take_each_row_once(loaded: Workbench) -> None:
    mirror, failures = Mirror(loaded.store), []
    for table in ("session", "message", "part", "usage"):
        mirror.cursor().execute(f"DELETE FROM {table}_row")
    mirror._rev = -1
    together = threading.Barrier(4)

    def refresh() -> None:
        together.wait()
        try:
            mirror.refresh()
        except Exception as error:  # noqa: BLE001  a thread's failure is asserted outside it
            failures.append(error)

    threads = [threading.Thread(target=refresh) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    pd.testing.assert_frame_equal(frames.parts(mirror), loaded.parts())


def test_a_store_that_went_away_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "odd name?#%41.db"
    with open_store(path) as store:
        mirror = Mirror(store)
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreError, match="cannot be read"):
            mirror.refresh()
        assert len(run_sql(mirror, "select * from steps")) == 0


def test_a_summary_of_two_calls_is_one_compaction(tmp_path: Path, loaded: Workbench) -> None:
    """Numbers come from the last call, the cost from both."""

    def retry(export: dict[str, Any]) -> None:
        summary = next(m for m in export["messages"] if m["info"].get("summary") is True)
        place, end = next(
            (n, p) for n, p in enumerate(summary["parts"]) if p["type"] == "step-finish"
        )
        first = doubled(end)
        first["tokens"]["output"] = 7
        summary["parts"].insert(place, first)

    with memory_workbench() as wb:
        wb.load(changed(tmp_path, retry))
        table, single = wb.compactions(), loaded.compactions()
        assert wb.steps()["attempt"].max() == 2
    assert list(table["number"]) == [1, 2, 3, 4]
    assert list(table["summary_tokens_out"].dropna()) == [545, 465, 331]
    assert table["cost_usd"][0] == pytest.approx(2 * single["cost_usd"][0])
    assert list(table["context_before"]) == list(single["context_before"])


def test_a_request_that_asks_twice_is_one_compaction(tmp_path: Path, loaded: Workbench) -> None:
    def ask_again(export: dict[str, Any]) -> None:
        for message in export["messages"]:
            asked = [part for part in message["parts"] if part["type"] == "compaction"]
            message["parts"] += [doubled(part) for part in asked]

    with memory_workbench() as wb:
        wb.load(changed(tmp_path, ask_again))
        pd.testing.assert_frame_equal(
            wb.compactions()[["number", "outcome", "tail_messages"]],
            loaded.compactions()[["number", "outcome", "tail_messages"]],
        )
