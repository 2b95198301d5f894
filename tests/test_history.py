"""What the model may see: boundaries, tails, and what a bad summary must not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.errors import NotFoundError
from forge_nb.history import choose_rule, filter_compacted, find_boundaries, view_at
from tests.histories import answer, discarded, having, ids, read_file, request, said, user

if TYPE_CHECKING:
    from forge_nb.messages.message import MessageWithParts

HEAD = [user("u1"), answer("a1", "u1"), user("u2"), answer("a2", "u2")]
WHOLE = ["u1", "a1", "u2", "a2", "uC", "aS", "u3"]

bad_summaries = pytest.mark.parametrize(
    "bad",
    [{"error": "APIError"}, {"error": "APIError", "finish": None}, {"finish": None}, {"text": " "}],
    ids=["error", "aborted", "unfinished", "blank"],
)


def seen(messages: list[MessageWithParts], **options: Any) -> list[str]:
    return ids(filter_compacted(reversed(messages), **options))


def compacted(tail: str | None = None, **summary: Any) -> list[MessageWithParts]:
    """Return two turns, a compaction, and a question."""
    made = answer("aS", "uC", summary=True, **summary)
    return [*HEAD, request("uC", tail), made, user("u3")]


# --------------------------------------------------------------------------------- boundaries


def test_without_a_boundary_everything_is_seen() -> None:
    assert seen(HEAD) == ["u1", "a1", "u2", "a2"]
    assert seen([]) == []


def test_a_boundary_drops_what_is_older() -> None:
    assert seen(compacted()) == ["uC", "aS", "u3"]
    assert choose_rule(compacted()) == "classic"


def test_a_tail_stays_behind_the_summary_and_the_classic_rule_ignores_it() -> None:
    assert seen(compacted("u2")) == ["uC", "aS", "u2", "a2", "u3"]
    assert seen(compacted("u2"), rule="classic") == ["uC", "aS", "u3"]
    assert choose_rule(compacted("u2")) == "tail"


def test_a_tail_may_start_at_an_answer() -> None:
    assert seen(compacted("a2")) == ["uC", "aS", "a2", "u3"]


@pytest.mark.parametrize("tail", [None, "u2"])
@bad_summaries
def test_a_bad_summary_cuts_nothing_with_or_without_a_tail(
    tail: str | None, bad: dict[str, str | None]
) -> None:
    assert seen(compacted(tail, **bad)) == WHOLE
    assert find_boundaries(compacted(tail, **bad)) == []


@bad_summaries
def test_a_bad_summary_leaves_the_boundary_before_it_in_force(bad: dict[str, str | None]) -> None:
    again = [answer("a3", "u3"), request("uD", "u3"), answer("aT", "uD", summary=True, **bad)]  # type: ignore[arg-type]
    assert seen(compacted("u2") + again) == ["uC", "aS", "u2", "a2", "u3", "a3", "uD", "aT"]


def test_a_summary_of_a_failed_attempt_is_no_summary() -> None:
    """The attempt that counts said nothing: as a boundary it would delete the history."""
    messages = compacted()
    messages[5] = having(messages[5], discarded(said("aS", "half a summary")))
    assert seen(messages) == WHOLE
    assert find_boundaries(messages) == []


def test_a_request_that_failed_and_was_answered_again_is_one_boundary() -> None:
    failed = answer("aF", "uC", summary=True, error="APIError")
    messages = [*HEAD, request("uC", "u2"), failed, *compacted("u2")[5:]]
    messages += [answer("aX", "uC", summary=True)]
    [boundary] = find_boundaries(messages)
    assert (boundary.number, boundary.request_id, boundary.summary_id) == (1, "uC", "aS")
    assert seen(messages) == ["uC", "aF", "aS", "u2", "a2", "u3", "aX"]


def test_a_tail_that_is_not_in_the_session_gives_everything_in_its_order() -> None:
    assert seen(compacted("gone")) == WHOLE


def test_a_summary_whose_parent_did_not_ask_is_no_boundary() -> None:
    messages = [*HEAD, request("uC"), answer("aS", "u2", summary=True), user("u3")]
    assert seen(messages) == WHOLE


def test_of_two_boundaries_only_the_newer_one_cuts() -> None:
    newer = [request("uD"), answer("aT", "uD", summary=True), user("u4")]
    assert seen(compacted("u2") + newer) == ["uD", "aT", "u4"]
    assert [one.number for one in find_boundaries(compacted("u2") + newer)] == [1, 2]


def test_a_tail_that_reaches_over_an_older_boundary_brings_it_back_into_view() -> None:
    newer = [request("uD", "a2"), answer("aT", "uD", summary=True), user("u4")]
    assert seen(compacted() + newer) == ["uD", "aT", "a2", "uC", "aS", "u3", "u4"]


# ------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("bad", [{"error": "APIError"}, {"finish": None}], ids=["error", "cut"])
def test_parity_lets_a_failed_summary_with_a_tail_hide_the_history(bad: dict[str, Any]) -> None:
    assert seen(compacted("u2", **bad), parity=True) == ["uC", "aS", "u2", "a2", "u3"]
    assert seen(compacted(**bad), parity=True) == WHOLE


def test_parity_takes_a_blank_summary_for_a_boundary() -> None:
    assert seen(compacted(text=""), parity=True) == ["uC", "aS", "u3"]


def test_parity_differs_in_nothing_where_summaries_are_good() -> None:
    for tail in (None, "u2", "a2", "gone"):
        assert seen(compacted(tail), parity=True) == seen(compacted(tail))


# ------------------------------------------------------------------------------ view at a call


def states(messages: list[MessageWithParts], at: str | None, **options: Any) -> dict[str, str]:
    labels = view_at(messages, at, **options).labels
    return {
        name: label.state if label.boundary is None else f"{label.state} {label.boundary}"
        for name, label in labels.items()
    }


def test_every_part_is_labelled_before_every_call() -> None:
    messages = [*compacted(), answer("a3", "u3")]
    assert states(messages, "a2") == {
        **dict.fromkeys(("p_u1", "p_a1", "p_u2"), "visible"),
        **dict.fromkeys(("p_a2", "p_uC", "p_aS", "p_u3", "p_a3"), "future"),
    }
    assert states(messages, "a3") == {
        **dict.fromkeys(("p_u1", "p_a1", "p_u2", "p_a2"), "dropped 1"),
        **dict.fromkeys(("p_uC", "p_aS", "p_u3"), "visible"),
        "p_a3": "future",
    }


def test_the_next_call_gets_the_question_that_waits() -> None:
    assert ids(view_at(compacted(), None).messages) == ["uC", "aS", "u3"]
    assert "future" not in states(compacted(), None).values()


def test_a_part_is_dropped_by_the_boundary_that_left_it_out_of_its_tail() -> None:
    newer = [answer("a3", "u3"), request("uD", "u3"), answer("aT", "uD", summary=True)]
    messages = compacted("u2") + newer
    tail = states(messages, None)
    assert (tail["p_u1"], tail["p_u2"], tail["p_uC"]) == ("dropped 1", "dropped 2", "dropped 2")
    assert tail["p_u3"] == "visible"
    classic = states(messages, None, rule="classic")
    assert (classic["p_u1"], classic["p_u2"], classic["p_uC"]) == (
        "dropped 1",
        "dropped 1",
        "dropped 2",
    )


def test_a_boundary_whose_tail_is_missing_dropped_nothing() -> None:
    newer = [request("uD"), answer("aT", "uD", summary=True)]
    assert states(compacted("gone") + newer, None)["p_u1"] == "dropped 2"


def test_at_a_summary_the_view_is_what_was_summarised() -> None:
    view = view_at(compacted("u2"), "aS")
    assert ids(view.messages) == ["u1", "a1", "u2", "a2"]
    assert view.boundaries == ()
    assert states(compacted("u2"), "aS")["p_uC"] == "future"


def test_at_a_second_summary_the_first_one_is_part_of_what_was_summarised() -> None:
    newer = [answer("a3", "u3"), request("uD"), answer("aT", "uD", summary=True)]
    assert ids(view_at(compacted("u2") + newer, "aT").messages) == [
        "uC", "aS", "u2", "a2", "u3", "a3",
    ]  # fmt: skip


def test_at_a_summary_that_nobody_asked_for_everything_before_it_was_summarised() -> None:
    """A question taken for a request, and what old versions wrote, have steps in between."""
    messages = [*HEAD, answer("aS", "u2", summary=True)]
    assert ids(view_at(messages, "aS").messages) == ["u1", "a1", "u2", "a2"]


def test_a_summary_that_ended_after_the_call_began_is_no_boundary_for_it() -> None:
    late = compacted(created=10, completed=50)
    for created, expected in ((20, 6), (50, 2), (60, 2)):
        call = answer("a3", "u3", created=created)
        assert len(view_at([*late, call], "a3").messages) == expected + 1
    untimed = [*compacted(created=10, completed=None), answer("a3", "u3", created=20)]
    assert ids(view_at(untimed, "a3").messages) == ["uC", "aS", "u3"]


@pytest.mark.parametrize(
    ("created", "state", "cleared_ms"), [(49, "visible", None), (50, "cleared", 50)]
)
def test_an_output_that_was_cleared_later_is_seen_as_it_was_then(
    created: int, state: str, cleared_ms: int | None
) -> None:
    first = having(answer("a1", "u1"), read_file("a1", compacted=50))
    messages = [user("u1"), first, answer("a2", "u1", created=created)]
    assert states(messages, "a2")["t_a1"] == state
    [tool] = view_at(messages, "a2").messages[1].parts
    assert tool.state.time.compacted == cleared_ms  # type: ignore[union-attr]
    assert states(messages, None)["t_a1"] == "cleared"


def test_a_part_of_a_failed_attempt_is_dropped_by_no_boundary() -> None:
    retried = having(answer("a1", "u1"), discarded(said("half")), said("a1"))
    assert states([user("u1"), retried], None) == {
        "p_u1": "visible",
        "p_half": "dropped",
        "p_a1": "visible",
    }


def test_rows_that_are_never_sent_are_visible_as_rows() -> None:
    assert set(states(HEAD, None).values()) == {"visible"}


@pytest.mark.parametrize("wrong", ["u1", "nope"])
def test_a_view_at_something_else_than_a_call_is_refused(wrong: str) -> None:
    with pytest.raises(NotFoundError):
        view_at(HEAD, wrong)
