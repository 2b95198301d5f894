"""The session that notebook 01 brings in is the one its generator makes, oddities included."""

from __future__ import annotations

import copy
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from notebooks.data import make_session
from notebooks.data.make_session import build_session, filter_compacted

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]

HOUR_MS = 3_600_000
ID = re.compile(r"(ses|msg|prt)_([0-9a-f]{12})[0-9A-Za-z]{14}")
KINDS = ("input", "output", "reasoning", "cache_read", "cache_write")
SONNET_USD_PER_MILLION = {
    "input": 3.0,
    "output": 15.0,
    "reasoning": 15.0,
    "cache_read": 0.3,
    "cache_write": 3.75,
}
RULE = "never change the public signature of `parse_date`"
DECISIONS = "docs/decisions.md"

# Where things are, counted from 0.
BOUNDARIES = {19: 20, 46: 47, 71: 72}  # request: summary
FAILED_REQUEST, FAILED_SUMMARY = 65, 66
ABORTED, RUNNING, DELEGATED = 39, 53, 68
TAIL_START = 38
CLEARED = 74
AFTER_CLEARING = 80
AFTER_THE_NIGHT = 55


@pytest.fixture(scope="module")
def session() -> Json:
    return build_session()


@pytest.fixture(scope="module")
def messages(session: Json) -> list[Json]:
    found: list[Json] = session["messages"]
    return found


def test_the_committed_file_is_what_the_generator_makes(session: Json) -> None:
    committed = json.loads(make_session.EXPORT.read_text("utf-8"))

    assert committed == session


def test_the_generator_makes_the_same_each_time(session: Json) -> None:
    assert build_session() == session


def test_the_file_stays_small() -> None:
    assert make_session.EXPORT.stat().st_size < 700_000


def test_the_counts_are_those_the_notebook_names(messages: list[Json]) -> None:
    assert len(messages) == 85
    assert sum(item["info"]["role"] == "user" for item in messages) == 20
    assert counted(part["type"] for part in parts_of(messages)) == {
        "agent": 1,
        "compaction": 4,
        "file": 1,
        "patch": 18,
        "reasoning": 18,
        "step-finish": 61,
        "step-start": 64,
        "subtask": 1,
        "text": 66,
        "tool": 94,
    }
    assert counted(part["state"]["status"] for part in tools_of(messages)) == {
        "completed": 92,
        "error": 1,
        "running": 1,
    }


# --------------------------------------------------------------------------------- ids and order


def test_ids_have_the_familys_shape_and_hold_their_time(messages: list[Json]) -> None:
    for item in messages:
        match = ID.fullmatch(item["info"]["id"])
        assert match is not None
        assert int(match[2], 16) >> 12 == item["info"]["time"]["created"] % 2**36
        assert all(ID.fullmatch(part["id"]) for part in item["parts"])


def test_the_session_id_counts_down(session: Json) -> None:
    digits = session["info"]["id"].removeprefix("ses_")[:12]
    created = session["info"]["time"]["created"]

    assert (~int(digits, 16) & (2**48 - 1)) >> 12 == created % 2**36


def test_everything_stands_in_the_order_of_its_id_and_names_its_place(session: Json) -> None:
    ids = [item["info"]["id"] for item in session["messages"]]
    part_ids = [part["id"] for part in parts_of(session["messages"])]

    assert ids == sorted(set(ids))
    assert part_ids == sorted(set(part_ids))
    for item in session["messages"]:
        assert item["info"]["sessionID"] == session["info"]["id"]
        for part in item["parts"]:
            assert part["sessionID"] == session["info"]["id"]
            assert part["messageID"] == item["info"]["id"]


def test_an_answer_names_a_question_before_it(messages: list[Json]) -> None:
    users = set()
    for item in messages:
        if item["info"]["role"] == "user":
            users.add(item["info"]["id"])
        else:
            assert item["info"]["parentID"] in users


def test_a_child_session_names_its_parent_and_is_not_in_the_file(session: Json) -> None:
    tasks = [part for part in tools_of(session["messages"]) if part["tool"] == "task"]

    assert len(tasks) == 2
    for part in tasks:
        metadata = part["state"]["metadata"]
        assert metadata["parentSessionId"] == session["info"]["id"]
        assert metadata["sessionId"] in part["state"]["output"]
        assert metadata["sessionId"] < session["info"]["id"]  # newer ones sort first


# ---------------------------------------------------------------------------------------- tokens


def test_a_calls_total_is_the_sum_of_its_kinds(messages: list[Json]) -> None:
    for item in messages:
        for end in ends_of(item):
            assert end["tokens"]["total"] == sum(kinds(end["tokens"]).values())
            assert end["tokens"] == item["info"]["tokens"]
            assert end["cost"] == item["info"]["cost"]


def test_a_call_costs_what_the_stated_prices_say(messages: list[Json]) -> None:
    for item in messages:
        for end in ends_of(item):
            assert end["cost"] == pytest.approx(usd(item["info"]["modelID"], end["tokens"]))


def test_the_roll_up_counts_one_call_more_than_the_messages_hold(session: Json) -> None:
    ends = [end for item in session["messages"] for end in ends_of(item)]
    sums = {kind: sum(kinds(end["tokens"])[kind] for end in ends) for kind in KINDS}
    undone = {"input": 6, "output": 214, "reasoning": 0, "cache_read": 4_870, "cache_write": 402}
    roll_up = kinds(session["info"]["tokens"])

    assert sums == {
        "input": 60_746,
        "output": 11_823,
        "reasoning": 87,
        "cache_read": 528_743,
        "cache_write": 84_191,
    }
    assert {kind: roll_up[kind] - sums[kind] for kind in KINDS} == undone
    assert sum(end["cost"] for end in ends) == pytest.approx(0.73506615)
    assert session["info"]["cost"] == pytest.approx(0.74126265)


def test_a_context_weighs_what_the_view_before_it_holds(messages: list[Json]) -> None:
    """Overhead, and a token for each 3.6 characters: the numbers can be traced to the text."""
    for at in turn_steps(messages):
        view = filter_compacted(as_seen_at(messages, at))
        characters = sum(map(len, make_session.sent_texts(view)))

        assert context(messages[at]) == 2_800 + round(characters / 3.6)


def test_only_the_two_automatic_compactions_follow_a_full_context(messages: list[Json]) -> None:
    totals = {at: messages[at]["info"]["tokens"]["total"] for at in turn_steps(messages)}

    assert {at: total for at, total in totals.items() if total >= 24_000} == {
        18: 24_146,
        45: 24_060,
    }
    assert max(totals.values()) < make_session.WINDOW_TOKENS


def test_the_cache_is_missed_at_the_start_and_when_something_breaks_it(
    messages: list[Json],
) -> None:
    steps = [at for at in turn_steps(messages) if is_priced(messages[at])]
    missed = [at for at in steps if messages[at]["info"]["tokens"]["cache"]["read"] == 0]

    assert missed == [1, 22, 49, AFTER_THE_NIGHT, CLEARED, AFTER_CLEARING]
    for before, at in itertools.pairwise(steps):
        if at not in missed:
            cache = messages[before]["info"]["tokens"]["cache"]
            assert messages[at]["info"]["tokens"]["cache"]["read"] == sum(cache.values())


def test_there_is_one_pause_of_more_than_an_hour(messages: list[Json]) -> None:
    created = [item["info"]["time"]["created"] for item in messages]
    pauses = [at for at in range(1, len(created)) if created[at] - created[at - 1] > HOUR_MS]

    assert pauses == [RUNNING + 1]


# ----------------------------------------------------------------------------------- compactions


def test_three_compactions_became_boundaries(messages: list[Json]) -> None:
    requests = {at: marker_of(messages[at]) for at in BOUNDARIES}

    assert [requests[at]["auto"] for at in BOUNDARIES] == [True, True, False]
    assert [requests[at].get("tail_start_id") for at in BOUNDARIES] == [
        None,
        messages[TAIL_START]["info"]["id"],
        None,
    ]
    assert messages[TAIL_START]["info"]["role"] == "user"
    for request, summary in BOUNDARIES.items():
        info = messages[summary]["info"]
        assert (info["summary"], info["mode"], info["finish"]) == (True, "compaction", "stop")
        assert info["parentID"] == messages[request]["info"]["id"]


def test_an_automatic_compaction_goes_on_by_itself(messages: list[Json]) -> None:
    continued = [
        at
        for at, item in enumerate(messages)
        for part in item["parts"]
        if part.get("metadata") == {"compaction_continue": True}
    ]

    assert continued == [21, 48]
    assert all(messages[at]["parts"][0]["synthetic"] for at in continued)


def test_a_view_starts_at_the_boundary_and_a_tail_stands_behind_the_summary(
    messages: list[Json],
) -> None:
    assert filter_compacted(messages[:20]) == messages[:20]
    assert filter_compacted(messages[:22]) == messages[19:22]
    assert filter_compacted(messages[:49]) == [*messages[46:48], *messages[38:46], messages[48]]
    assert filter_compacted(messages) == messages[71:]
    assert len(filter_compacted(messages)) == 14


def test_the_failed_compaction_cuts_nothing(messages: list[Json]) -> None:
    info = messages[FAILED_SUMMARY]["info"]
    before = filter_compacted(messages[:FAILED_REQUEST])

    assert (info["summary"], info["error"]["name"]) == (True, "MessageAbortedError")
    assert "finish" not in info
    assert marker_of(messages[FAILED_REQUEST])["auto"] is False
    assert filter_compacted(messages[: FAILED_SUMMARY + 1])[: len(before)] == before


def test_a_rule_outlives_two_summaries_and_is_lost_in_the_third(messages: list[Json]) -> None:
    first, second, third = (text_of(messages[summary]) for summary in BOUNDARIES.values())

    assert RULE.replace("`", "") in messages[0]["parts"][0]["text"]
    assert RULE in first
    assert RULE in second
    assert "signature" not in third
    broken = [part["state"]["input"] for part in tools_of(messages[CLEARED:79])]
    assert any("pivot_span: int" in given.get("newString", "") for given in broken)


def test_a_path_is_lost_and_its_file_read_again(messages: list[Json]) -> None:
    summaries = [text_of(messages[summary]) for summary in BOUNDARIES.values()]
    read = [
        at
        for at, item in enumerate(messages)
        for part in tools_of([item])
        if part["state"]["input"].get("filePath", "").endswith(DECISIONS)
    ]

    assert [DECISIONS in summary for summary in summaries] == [False, True, False]
    assert read == [15, 36, 81]


# -------------------------------------------------------------------------------------- oddities


def test_an_aborted_turn_keeps_its_text_and_reports_nothing(messages: list[Json]) -> None:
    item = messages[ABORTED]

    assert item["info"]["error"]["name"] == "MessageAbortedError"
    assert "finish" not in item["info"]
    assert ends_of(item) == []
    assert text_of(item)


def test_a_tool_was_left_running_at_the_end_of_the_day(messages: list[Json]) -> None:
    item = messages[RUNNING]
    (tool,) = tools_of([item])

    assert tool["state"]["status"] == "running"
    assert set(tool["state"]["time"]) == {"start"}
    assert set(item["info"]["time"]) == {"created"}
    assert ends_of(item) == []


def test_delegated_work_is_no_call_of_the_model(messages: list[Json]) -> None:
    item = messages[DELEGATED]

    assert [part["type"] for part in messages[DELEGATED - 1]["parts"]] == ["subtask"]
    assert [part["type"] for part in item["parts"]] == ["tool"]
    assert item["info"]["finish"] == "tool-calls"


def test_two_outputs_were_cleared_after_their_turn(messages: list[Json]) -> None:
    cleared = [part for part in tools_of(messages) if "compacted" in part["state"]["time"]]

    assert cleared == tools_of([messages[CLEARED]])
    assert all(part["state"]["output"] for part in cleared)
    assert context(messages[AFTER_CLEARING]) < context(messages[78])


def test_one_model_has_no_known_price(messages: list[Json]) -> None:
    unpriced = [item for item in messages if item["info"].get("modelID") == "quill-7b"]

    assert len(unpriced) == 3
    for item in unpriced:
        assert item["info"]["providerID"] == "local-lab"
        assert item["info"]["cost"] == 0
        assert item["info"]["tokens"]["total"] > 10_000


def test_a_mentioned_file_became_two_texts_and_a_file(messages: list[Json]) -> None:
    typed, called, content, file = messages[0]["parts"]
    span = file["source"]["text"]

    assert called["synthetic"]
    assert content["synthetic"]
    assert typed["text"][span["start"] : span["end"]] == span["value"]


def test_no_path_leads_out_of_the_invented_project() -> None:
    text = make_session.EXPORT.read_text("utf-8")

    assert set(re.findall(r"/(?:home|root|tmp|work|usr|Users)\b(?:/\w+)?", text)) == {"/home/ada"}


# --------------------------------------------------------------------------------------- helpers


def parts_of(messages: list[Json]) -> list[Json]:
    return [part for item in messages for part in item["parts"]]


def tools_of(messages: list[Json]) -> list[Json]:
    return [part for part in parts_of(messages) if part["type"] == "tool"]


def ends_of(item: Json) -> list[Json]:
    return [part for part in item["parts"] if part["type"] == "step-finish"]


def text_of(item: Json) -> str:
    return "\n".join(part["text"] for part in item["parts"] if part["type"] == "text")


def marker_of(item: Json) -> Json:
    (part,) = item["parts"]
    assert part["type"] == "compaction"
    marker: Json = part
    return marker


def counted(names: Iterable[str]) -> dict[str, int]:
    listed = sorted(names)
    return {name: listed.count(name) for name in dict.fromkeys(listed)}


def kinds(tokens: Json) -> dict[str, int]:
    cache = {"cache_read": tokens["cache"]["read"], "cache_write": tokens["cache"]["write"]}
    return {kind: tokens[kind] for kind in ("input", "output", "reasoning")} | cache


def context(item: Json) -> int:
    tokens = kinds(item["info"]["tokens"])
    return tokens["input"] + tokens["cache_read"] + tokens["cache_write"]


def usd(model: str, tokens: Json) -> float:
    if model != "claude-sonnet-4-5":
        return 0.0
    return sum(SONNET_USD_PER_MILLION[kind] * n for kind, n in kinds(tokens).items()) / 1e6


def is_priced(item: Json) -> bool:
    return bool(item["info"]["modelID"] == "claude-sonnet-4-5")


def turn_steps(messages: list[Json]) -> list[int]:
    """Return where the calls stand that reported usage, summaries left out."""
    return [
        at for at, item in enumerate(messages) if ends_of(item) and item["info"]["mode"] == "build"
    ]


def as_seen_at(messages: list[Json], at: int) -> list[Json]:
    """Return the messages before one, with no output cleared that was cleared later."""
    now = messages[at]["info"]["time"]["created"]
    before = copy.deepcopy(messages[:at])
    for part in tools_of(before):
        if part["state"]["time"].get("compacted", 0) > now:
            del part["state"]["time"]["compacted"]
    return before
