"""Rules, and asking: who may do what, and what happens while somebody thinks about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.errors import NotFoundError, ToolError, ToolRejectedError
from forge_nb.events import PermissionAsked, PermissionReplied
from forge_nb.tools.permissions import (
    DEFAULT_RULES,
    Action,
    Permissions,
    Rule,
    commands_in,
    decide,
)
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("permission", "pattern", "expected"),
    [
        ("read", "src/a.py", "allow"),
        ("read", ".env", "deny"),
        ("read", "deep/prod.env", "deny"),
        ("read", ".env.local", "deny"),
        ("read", ".env.example", "allow"),
        ("edit", "a.py", "ask"),
        ("bash", "ls", "ask"),
        ("external_directory", "/etc", "ask"),
        ("doom_loop", "read", "ask"),
        ("something new", "x", "ask"),
    ],
)
def test_the_default_rules(permission: str, pattern: str, expected: Action) -> None:
    assert decide(DEFAULT_RULES, permission, pattern) == expected


def test_the_last_rule_that_matches_decides() -> None:
    rules = [Rule("bash", "git *", "allow"), Rule("bash", "git push*", "deny")]
    assert decide(rules, "bash", "git status") == "allow"
    assert decide(rules, "bash", "git push origin") == "deny"
    assert decide([*rules, Rule("*", "*", "allow")], "bash", "git push") == "allow"
    assert decide([], "bash", "ls") == "ask"


@given(st.text(), st.text(), st.sampled_from(["allow", "ask", "deny"]))
def test_a_rule_of_stars_matches_everything_and_a_pattern_itself(
    permission: str, pattern: str, action: Action
) -> None:
    clean = pattern.replace("\0", "")
    assert decide([Rule("*", "*", action)], permission.replace("\0", ""), clean) == action
    plain = clean.replace("*", "").replace("?", "")
    assert decide([Rule("p", plain, "allow")], "p", plain) == "allow"
    assert decide([Rule("p", plain, "allow")], "p", f"{plain}x") == "ask"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ls -la", ["ls -la"]),
        ("cd a && rm -rf b; echo c", ["cd a", "rm -rf b", "echo c"]),
        ("sudo -n timeout 5 env A=1 rm x", ["rm x"]),
        ("A=1 B=2 make", ["make"]),
        ("cat a | xargs -n 1 rm", ["cat a", "rm"]),
        ("a\nb", ["a", "b"]),
        ("echo 'a && b'", ["echo a && b"]),
        ("echo $(rm x)", None),
        ("echo `rm x`", None),
        ("echo x > /etc/passwd", None),
        ("eval rm", None),
        ("echo 'open", None),
    ],
)
def test_a_shell_line_is_taken_apart_or_not_trusted(line: str, expected: list[str] | None) -> None:
    assert commands_in(line) == expected


class Asked:
    """Permissions of a session, with what they published."""

    def __init__(self, *rules: Rule, can_ask: bool = True) -> None:
        self.events: list[Any] = []
        ids = iter(range(100))
        self.permissions = Permissions(
            "ses",
            rules,
            announce=self.events.append,
            new_id=lambda prefix: f"{prefix}_{next(ids)}",
            can_ask=lambda: can_ask,
        )

    async def ask(self, *patterns: str, always: Sequence[str] = ()) -> asyncio.Task[None]:
        """Ask in the background and wait until it is asked."""
        before = len(self.permissions.pending)
        task = asyncio.ensure_future(self.permissions.ask("bash", patterns, always=always))
        await wait_for(lambda: task.done() or len(self.permissions.pending) > before)
        return task


async def test_what_is_allowed_is_not_asked_and_what_is_denied_is_an_error() -> None:
    asked = Asked(Rule("bash", "ls*", "allow"), Rule("bash", "rm*", "deny"))
    await asked.permissions.ask("bash", ["ls -la"])
    with pytest.raises(ToolError, match="denied by a rule"):
        await asked.permissions.ask("bash", ["ls", "rm x"])
    assert asked.events == []


async def test_an_answer_lets_one_call_go_and_is_published() -> None:
    asked = Asked()
    task = await asked.ask("make")
    [event] = asked.permissions.pending
    asked.permissions.reply(event.id, "once")
    await task
    assert asked.permissions.pending == []
    assert [type(one) for one in asked.events] == [PermissionAsked, PermissionReplied]
    assert not (await asked.ask("make")).done()


async def test_always_allows_from_now_on_and_frees_what_waits_for_the_same() -> None:
    asked = Asked()
    first = await asked.ask("git status", always=["git *"])
    second = await asked.ask("git diff")
    other = await asked.ask("make")
    asked.permissions.reply(asked.permissions.pending[0].id, "always")
    await asyncio.gather(first, second)
    assert not other.done()
    await asked.permissions.ask("bash", ["git log"])
    other.cancel()


async def test_a_rejection_ends_everything_that_waits_and_tells_its_reason_once() -> None:
    asked = Asked()
    first, second = await asked.ask("make"), await asked.ask("test")
    asked.permissions.reply(asked.permissions.pending[0].id, "reject", "use ninja")
    with pytest.raises(ToolRejectedError, match="use ninja") as raised:
        await first
    assert raised.value.reason == "use ninja"
    with pytest.raises(ToolRejectedError) as raised:
        await second
    assert raised.value.reason is None


async def test_where_nobody_can_answer_asking_means_no_and_never_waits() -> None:
    asked = Asked(can_ask=False)
    with pytest.raises(ToolRejectedError, match="nobody is there") as raised:
        await asked.permissions.ask("bash", ["make"])
    assert raised.value.reason is None
    assert asked.permissions.pending == []


async def test_a_caller_that_gives_up_leaves_nothing_waiting() -> None:
    asked = Asked()
    task = await asked.ask("make")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked.permissions.pending == []


async def test_an_answer_may_come_from_another_thread_and_only_once() -> None:
    asked = Asked()
    task = await asked.ask("make")
    [event] = asked.permissions.pending
    await asyncio.to_thread(asked.permissions.reply, event.id, "once")
    await task
    with pytest.raises(NotFoundError, match="no request"):
        asked.permissions.reply(event.id, "once")
