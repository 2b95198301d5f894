"""What would only fail in the middle of a run, or say yes by mistake, is refused at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forge_nb.agents import Agent
from forge_nb.compaction.strategies import register_strategy
from forge_nb.errors import ExchangeError, UsageError
from forge_nb.events import PermissionAsked
from forge_nb.settings import Settings
from forge_nb.structured import output_format
from forge_nb.tools.permissions import Permissions, Rule
from forge_nb.workbench import Workbench
from tests.helpers import Saying, text, wait_for, workbench


@pytest.mark.parametrize("action", ["denied", "Deny", "no", "alow", "", None, False])
def test_a_misspelt_action_is_no_rule(action: Any) -> None:
    with pytest.raises(UsageError, match="allow, ask or deny"):
        Rule("deploy", "*", action)


@pytest.mark.parametrize("reply", ["no", "deny", "Reject", "", None, False, "yes"])
async def test_a_misspelt_reply_is_no_answer_and_the_question_stays(reply: Any) -> None:
    asked: list[Any] = []
    permissions = Permissions(
        "ses_1", [], announce=asked.append, new_id=lambda _: "per_1", can_ask=lambda: True
    )
    task = asyncio.ensure_future(permissions.ask("deploy", ["x"]))
    await wait_for(lambda: bool(asked))
    with pytest.raises(UsageError, match="reject"):
        permissions.reply("per_1", reply)

    assert isinstance(asked[0], PermissionAsked)
    assert not task.done()
    assert "deploy" in repr(permissions)
    permissions.reply("per_1", "once")
    await task


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retries", "five"),
        ("retries", True),
        ("pinned", "one sentence"),
        ("rules", [Rule("bash")]),
        ("tail_tokens", 1.5),
        ("checkpoint_s", "1"),
        ("text_end_hooks", ("strip",)),
        ("trim", None),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"Settings\.{name} is "):
        Settings(**{name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"settings": {"asks": True}},
        {"settings": Settings(rules=("bash",))},
        {"tools": [print]},
        {"agents": ["reviewer"]},
        {"agents": [Agent(name="reviewer", permissions=({"permission": "bash"},))]},
    ],
)
def test_what_a_workbench_cannot_use_is_refused_when_it_is_opened(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"is no |has to be"):
        Workbench(":memory:", **given)


async def test_an_unknown_strategy_is_refused_before_anything_is_stored() -> None:
    wb = workbench(Saying(text("yes")), settings=Settings(strategy="nope"))
    s = wb.session("a title")

    with pytest.raises(UsageError, match="'nope'"):
        await s.prompt("go")

    assert s.messages() == []


@pytest.mark.parametrize("wanted", ["int", 5])
def test_an_output_that_is_no_type_is_refused_in_words(wanted: Any) -> None:
    with pytest.raises(UsageError, match="output's shape"):
        output_format(wanted)


async def test_a_strategy_that_raises_gives_its_reason() -> None:
    def boom(conversation: str, prior: str | None) -> str:
        raise ZeroDivisionError(conversation[:0] + str(prior))

    register_strategy("boom", boom)
    wb = workbench(Saying(text("yes " * 50)), settings=Settings(strategy="boom"))
    s = wb.session("a title")
    await s.prompt("go " * 50)
    result = await s.compact()

    assert result.outcome == "failed"
    assert "ZeroDivisionError" in str(result.error)
    assert "ZeroDivisionError" in repr(result)
    assert list(s.compactions()["error"]) == ["UnknownError"]


def test_an_import_that_brings_nothing_raises_and_names_each_file() -> None:
    wb = Workbench(":memory:")

    with pytest.raises(ExchangeError, match=r"nope\.json(?s:.*)none\.db"):
        wb.load("nope.json", "none.db")


def test_a_new_session_is_new_whatever_the_others_are_called() -> None:
    wb = Workbench(":memory:")

    first, second = wb.new_session("same"), wb.new_session("same")

    assert first.id != second.id
    with pytest.raises(UsageError, match="use an id"):
        wb.session("same")
