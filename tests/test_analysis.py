"""Frames and SQL: stable dtypes, live beside a writer, shut off from everything else."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from forge_nb.analysis import frames
from forge_nb.analysis.charts import context_svg
from forge_nb.analysis.mirror import Mirror
from forge_nb.analysis.query import run_sql
from forge_nb.analysis.views import FRAME_ORDER
from forge_nb.errors import UsageError
from forge_nb.events import MessageRemoved, SessionRemoved
from forge_nb.messages.message import AssistantMessage
from forge_nb.messages.stream import StepStart, StreamError
from forge_nb.messages.usage import TokenUsage
from forge_nb.store.open import open_store
from forge_nb.testing import memory_workbench
from tests.helpers import Saying, text, workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge_nb.messages.stream import StreamEvent
    from forge_nb.workbench import Workbench

DATA = Path(__file__).parents[1] / "notebooks" / "data" / "parser-fix.json"

STEP_COLUMNS = [
    "session_id",
    "message_id",
    "step",
    "purpose",
    "provider",
    "model",
    "agent",
    "started_at",
    "finished_at",
    "tokens_input",
    "tokens_output",
    "tokens_reasoning",
    "tokens_cache_read",
    "tokens_cache_write",
    "tokens_total",
    "context_tokens",
    "cost_usd",
    "cost_recorded_usd",
    "cost_source",
    "finish",
    "outcome",
    "error",
]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Workbench]:
    with memory_workbench() as wb:
        wb.load(DATA)
        yield wb


def frame(mirror: Mirror, name: str) -> pd.DataFrame:
    made: pd.DataFrame = getattr(frames, name)(mirror)
    return made


@pytest.mark.parametrize("name", sorted(FRAME_ORDER))
def test_an_empty_store_gives_the_same_dtypes_as_a_full_one(loaded: Workbench, name: str) -> None:
    with open_store(":memory:") as store:
        empty = frame(Mirror(store), name)
    full = frame(loaded.mirror, name)
    assert len(empty) == 0
    assert len(full) > 0
    pd.testing.assert_series_equal(empty.dtypes, full.dtypes)


@pytest.mark.parametrize("name", sorted(FRAME_ORDER))
def test_a_frame_is_the_view_of_its_name(loaded: Workbench, name: str) -> None:
    viewed = loaded.sql(f"select * from {name} order by {FRAME_ORDER[name]}")
    pd.testing.assert_frame_equal(frame(loaded.mirror, name), viewed)


def test_steps_has_the_promised_columns_and_a_row_for_every_call(loaded: Workbench) -> None:
    steps = loaded.steps()
    assert list(steps.columns)[: len(STEP_COLUMNS)] == STEP_COLUMNS
    assert list(steps["step"]) == list(range(1, 65))
    cut = steps[steps["outcome"] != "completed"]
    assert list(cut["step"]) == [32, 42, 51]
    assert cut["tokens_total"].isna().all()
    assert cut["cost_usd"].isna().all()


def test_an_unknown_price_is_missing_and_a_recorded_zero_stays_beside_it(
    loaded: Workbench,
) -> None:
    unpriced = loaded.steps().query("model == 'quill-7b'")
    assert list(unpriced["step"]) == [45, 46, 47]
    assert unpriced["cost_usd"].isna().all()
    assert unpriced["cost_recorded_usd"].eq(0).all()
    assert set(unpriced["cost_source"]) == {"unpriced"}


def test_compactions_tell_what_each_request_became(loaded: Workbench) -> None:
    table = loaded.compactions()
    assert list(table["outcome"]) == ["done", "done", "aborted", "done"]
    assert list(table["trigger"]) == ["threshold", "threshold", "manual", "manual"]
    assert list(table["tail_messages"]) == [0, 8, 0, 0]
    done = table[table["outcome"] == "done"]
    assert list(done["context_before"]) == [24_007, 23_836, 12_370]
    assert list(done["context_after"]) == [3_379, 8_713, 3_223]
    assert list(done["summary_tokens_in"]) == [10_645, 9_700, 7_893]
    assert list(done["summary_tokens_out"]) == [545, 465, 331]


def test_outcomes_tell_abort_failure_and_completion_apart() -> None:
    broken: list[StreamEvent] = [StepStart(), StreamError(message="no", kind="api")]
    with workbench(Saying(text("fine"), broken)) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            await conversation.prompt("one")
            await conversation.prompt("two")

        asyncio.run(main())
        assert list(wb.steps()["outcome"]) == ["completed", "failed"]
        assert list(wb.steps()["error"].fillna("")) == ["", "APIError"]


def test_missing_counts_stay_missing() -> None:
    half = TokenUsage(input=5)
    with workbench(Saying(text("fine", usage=half))) as wb:
        asyncio.run(wb.session("t").prompt("one"))
        [row] = wb.steps().to_dict("records")
    assert row["tokens_input"] == row["tokens_total"] == row["context_tokens"] == 5
    assert pd.isna(row["tokens_output"])
    assert pd.isna(row["tokens_cache_read"])


def test_a_mirror_follows_writes_and_removals() -> None:
    with memory_workbench("scripted:hello") as wb:
        mirror = Mirror(wb.store)
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("hi"))
        assert mirror.refresh() > 0
        assert mirror.refresh() == 0
        assert len(frames.messages(mirror)) == 2
        answer = conversation.messages()[-1].message
        assert isinstance(answer, AssistantMessage)
        gone = MessageRemoved(session_id=conversation.id, message_id=answer.id)
        wb.store.apply([gone]).result()
        mirror.refresh()
        assert len(frames.messages(mirror)) == 1
        assert set(frames.parts(mirror)["message_id"]) == {conversation.messages()[0].message.id}
        wb.store.apply([SessionRemoved(session_id=conversation.id)]).result()
        mirror.refresh()
        assert [len(frame(mirror, name)) for name in FRAME_ORDER] == [0] * 6


def test_a_reader_beside_a_writer_sees_whole_transactions() -> None:
    """A session row's sums and its usage rows change together, whenever one looks."""
    with memory_workbench("scripted:tour") as wb:
        conversation = wb.session("t")
        mirror, done = Mirror(wb.store), threading.Event()
        torn: list[Any] = []

        def look() -> None:
            query = (
                "select s.tokens_output as said, (select sum(u.tokens_output) from usage_row u)"
                " as summed from session_row s"
            )
            while not done.is_set():
                mirror.refresh()
                seen = run_sql(mirror, query)
                torn.extend(row for row in seen.itertuples() if not _same(row.said, row.summed))

        reader = threading.Thread(target=look)
        reader.start()
        try:
            asyncio.run(conversation.prompt("why?"))
        finally:
            done.set()
            reader.join()
    assert torn == []


def _same(left: Any, right: Any) -> bool:
    return (left is pd.NA and right is pd.NA) or bool(left == right)


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "create table mine (a int)",
        "drop view steps",
        "select 1; select 2",
        "copy steps to 'out.csv'",
        "attach 'other.db'",
        "install sqlite",
        "load sqlite",
        "pragma database_list",
        "set threads = 1",
        "select nope from steps",
        "selec 1",
        "",
        "   ",
    ],
)
def test_a_query_that_is_not_a_read_of_the_views_is_refused(loaded: Workbench, query: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded.sql(query)
    assert "\n" not in str(caught.value)


def test_parameters_are_values_and_never_sql(loaded: Workbench) -> None:
    hostile = "x'; drop view steps; --"
    assert len(loaded.sql("select * from steps where model = ?", [hostile])) == 0
    assert len(loaded.sql("select * from steps")) == 64


def test_a_query_without_end_is_stopped(loaded: Workbench) -> None:
    with pytest.raises(UsageError, match="took more than"):
        run_sql(
            loaded.mirror,
            "select count(*) from range(100000000) a, range(100000) b",
            timeout_s=0.2,
        )
    assert len(loaded.sql("select * from steps")) == 64


def test_sums_of_whole_numbers_stay_whole(loaded: Workbench) -> None:
    total = loaded.sql("select sum(tokens_output) as n from steps")["n"]
    assert str(total.dtype) == "Int64"
    assert total[0] == 11_823


def test_a_chart_is_self_contained_escapes_its_title_and_takes_any_length(
    loaded: Workbench,
) -> None:
    steps, cuts = loaded.steps(), loaded.compactions()
    svg = context_svg(steps, cuts, usable=24_000, title="<b>& me</b>")
    assert "&lt;b&gt;&amp; me&lt;/b&gt;" in svg
    assert "<b>" not in svg
    assert "<script" not in svg
    assert svg.count('class="bd"') == 3 + 1  # the boundaries, and one in the legend
    assert context_svg(steps.iloc[:0], cuts.iloc[:0]).endswith("</svg>")
    many = pd.concat([steps] * 80, ignore_index=True)
    many["step"] = pd.array(range(1, len(many) + 1), dtype="Int64")
    assert len(context_svg(many, cuts)) < 300_000


def test_an_impossible_time_is_missing_and_stops_nothing(tmp_path: Path) -> None:
    export = json.loads(DATA.read_text("utf-8"))
    export["messages"][0]["info"]["time"]["created"] = 10**18
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(export), "utf-8")
    with memory_workbench() as wb:
        wb.load(path)
        assert wb.messages()["created_at"].isna().sum() == 1
        assert len(wb.steps()) == 64
