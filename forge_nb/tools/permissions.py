"""Who may do what: rules, and asking a person where no rule decides.

A rule names a permission (``edit``, ``bash`` …), a pattern of what it is about, and what to do:
allow, ask or deny. The last rule that matches decides, and where none matches a person is asked.
Where nobody can be asked, asking means no: a notebook that runs by itself never hangs.

This guards against mistakes. It is no sandbox: tools run with the rights of whoever runs them.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from forge_nb.errors import NotFoundError, ToolError, ToolRejectedError, UsageError
from forge_nb.events import PermissionAsked, PermissionReplied, PermissionReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from forge_nb.events import LiveEvent

__all__ = [
    "DEFAULT_RULES",
    "Action",
    "Permissions",
    "Rule",
    "commands_in",
    "decide",
]

Action = Literal["allow", "ask", "deny"]
_WRAPPERS = frozenset(
    {"command", "env", "exec", "nice", "nohup", "sudo", "time", "timeout", "xargs"}
)
_SEPARATORS = frozenset({"&&", "||", "|", "|&", ";", "&", "\n"})
_OPAQUE = re.compile(r"[`(){}<>]|\$\(|\beval\b")  # what hides a command, or writes a file


class Rule(msgspec.Struct, frozen=True):
    """What to do about a permission.

    Parameters
    ----------
    permission
        A name (``edit``, ``bash``, ``task``, a tool's own), or a pattern of names: ``*`` stands
        for any.
    pattern
        Of what it is about: a path, a command. ``*`` stands for anything, ``?`` for one letter.
    action
        ``allow``, ``ask`` or ``deny``.

    Raises
    ------
    UsageError
        For any other action: a misspelt one must not become a yes.

    Examples
    --------
    >>> Rule("bash", "git *", "allow")
    Rule(permission='bash', pattern='git *', action='allow')
    """

    permission: str
    pattern: str = "*"
    action: Action = "ask"

    def __post_init__(self) -> None:
        """Refuse what is no action."""
        if self.action not in get_args(Action):
            msg = f"the action of a rule is {self.action!r}; it has to be allow, ask or deny"
            raise UsageError(msg, permission=self.permission)
        if not all(isinstance(one, str) for one in (self.permission, self.pattern)):
            msg = f"{(self.permission, self.pattern)!r} are no texts; name a permission, a pattern"
            raise UsageError(msg)


DEFAULT_RULES = (
    Rule("*", "*", "ask"),
    Rule("read", "*", "allow"),
    Rule("glob", "*", "allow"),
    Rule("grep", "*", "allow"),
    Rule("todowrite", "*", "allow"),
    Rule("task", "*", "allow"),  # what the agent does is asked of the agent
    Rule("read", "*.env", "deny"),
    Rule("read", "*.env.*", "deny"),
    Rule("read", "*.env.example", "allow"),
)
"""Looking inside the workspace is free, secrets are closed, all else is asked."""


def decide(rules: Iterable[Rule], permission: str, pattern: str) -> Action:
    """Return what the rules say: the last one that matches, ``ask`` where none does.

    Examples
    --------
    >>> decide(DEFAULT_RULES, "read", "notes.txt"), decide(DEFAULT_RULES, "read", "prod/.env")
    ('allow', 'deny')
    """
    action: Action = "ask"
    for rule in rules:
        if _matches(rule.permission, permission) and _matches(rule.pattern, pattern):
            action = rule.action
    return action


def _matches(pattern: str, text: str) -> bool:
    pieces = re.split(r"([*?])", pattern)
    words = {"*": "[^\0]*", "?": "[^\0]"}
    expression = "".join(words.get(piece, re.escape(piece)) for piece in pieces)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def commands_in(line: str) -> list[str] | None:
    """Return the commands of a shell line, each without what it is wrapped in; None if unsure.

    Examples
    --------
    >>> commands_in("cd src && sudo -n git push | tee log")
    ['cd src', 'git push', 'tee log']
    >>> commands_in("echo $(rm x)") is None
    True
    """
    if _OPAQUE.search(line):
        return None
    try:
        lexer = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return None
    return [" ".join(_unwrapped(command)) for command in _split(words) if command]


def _split(words: Iterable[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if word in _SEPARATORS:
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _unwrapped(command: list[str]) -> list[str]:
    """Return a command without the words that only start it: settings, ``sudo``, ``timeout 5``."""
    while command:
        word = command[0]
        is_setting = re.fullmatch(r"\w+=.*", word, re.DOTALL)
        if is_setting or word in _WRAPPERS:
            command = command[1:]
            while command and (command[0].startswith("-") or command[0].replace(".", "").isdigit()):
                command = command[1:]
        else:
            break
    return command


class _Pending(msgspec.Struct):
    event: PermissionAsked
    answer: asyncio.Future[tuple[PermissionReply, str | None]]
    loop: asyncio.AbstractEventLoop


class Permissions:
    """What one session may do, and what it waits to be allowed.

    Parameters
    ----------
    session_id
        Which session.
    rules
        In order; the last that matches decides.
    announce
        Publishes what is asked and answered.
    new_id
        Makes ids of requests.
    can_ask
        Returns whether anybody is there to answer.
    """

    def __init__(
        self,
        session_id: str,
        rules: Sequence[Rule],
        *,
        announce: Callable[[LiveEvent], None],
        new_id: Callable[[Literal["per"]], str],
        can_ask: Callable[[], bool],
    ) -> None:
        self._session_id = session_id
        self._rules = list(rules)
        self._announce = announce
        self._new_id = new_id
        self._can_ask = can_ask
        self._pending: dict[str, _Pending] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Say what waits, and which rules there are of one's own."""
        own = self._rules[len(DEFAULT_RULES) :]
        waits = [f"{one.permission} of {list(one.patterns)} ({one.id})" for one in self.pending]
        return f"<permissions: waiting {waits}, rules after the defaults {own}>"

    @property
    def pending(self) -> list[PermissionAsked]:
        """What waits for an answer, oldest first."""
        with self._lock:
            return [one.event for one in self._pending.values()]

    async def ask(
        self,
        permission: str,
        patterns: Sequence[str],
        *,
        always: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        message_id: str | None = None,
        call_id: str | None = None,
    ) -> None:
        """Return when it may be done.

        Parameters
        ----------
        permission, patterns
            What is to be done, and to what; all of it has to be allowed.
        always
            Patterns that the answer ``always`` will allow from then on.
        metadata
            What a person should see before answering.
        message_id, call_id
            The call that asks.

        Raises
        ------
        ToolError
            When a rule denies it.
        ToolRejectedError
            When a person says no, or nobody is there; `reason` is None where the turn is to end.
        """
        actions = {decide(self._rules, permission, one): one for one in patterns}
        if "deny" in actions:
            msg = f"{permission} of {actions['deny']!r} is denied by a rule; do it another way"
            raise ToolError(msg, permission=permission)
        if "ask" not in actions:
            return
        event = PermissionAsked(
            id=self._new_id("per"),
            session_id=self._session_id,
            permission=permission,
            patterns=tuple(patterns),
            always=tuple(always),
            metadata=metadata or {},
            message_id=message_id,
            call_id=call_id,
        )
        if not self._can_ask():
            msg = (
                f"{permission} of {actions['ask']!r} needs leave, and nobody is there to give it; "
                f"allow it with Rule({permission!r}, …, 'allow')"
            )
            raise ToolRejectedError(msg, permission=permission, reason=None)
        await self._wait(event)

    async def _wait(self, event: PermissionAsked) -> None:
        loop = asyncio.get_running_loop()
        pending = _Pending(event=event, answer=loop.create_future(), loop=loop)
        with self._lock:
            self._pending[event.id] = pending
        self._announce(event)
        try:
            reply, reason = await pending.answer
        finally:
            with self._lock:
                self._pending.pop(event.id, None)
        if reply == "reject":
            words = "The user rejected permission to use this specific tool call"
            msg = (
                f"{words}." if reason is None else f"{words} with the following feedback: {reason}"
            )
            raise ToolRejectedError(msg, permission=event.permission, reason=reason)

    def reply(self, request_id: str, reply: PermissionReply, reason: str | None = None) -> None:
        """Answer a request; from any thread.

        Parameters
        ----------
        request_id
            As in `pending`.
        reply
            ``once``; ``always`` allows the request's patterns from now on and lets others that
            wait for the same go; ``reject`` ends the turn, and everything else that waits.
        reason
            Of a rejection: told to the model, which may then go on another way.

        Raises
        ------
        NotFoundError
            When nothing of this id waits.
        UsageError
            For any other reply: a misspelt no must not become a yes.
        """
        if reply not in get_args(PermissionReply):
            msg = (
                f"a reply is one of {list(get_args(PermissionReply))}, not {reply!r}; answer again"
            )
            raise UsageError(msg, request_id=request_id)
        with self._lock:
            found = self._pending.get(request_id)
            if found is None:
                known = list(self._pending)
                msg = f"no request {request_id!r} waits for an answer; there are {known}"
                raise NotFoundError(msg, request_id=request_id)
            answered = [found]
            others = [one for one in self._pending.values() if one is not found]
            if reply == "always":
                new = [Rule(found.event.permission, one, "allow") for one in found.event.always]
                self._rules += new
                answered += [one for one in others if self._is_allowed(one.event)]
            elif reply == "reject":
                answered += others
        for one in answered:
            self._answer(one, reply, reason if one is found else None)

    def _is_allowed(self, event: PermissionAsked) -> bool:
        actions = {decide(self._rules, event.permission, one) for one in event.patterns}
        return actions <= {"allow"}

    def _answer(self, one: _Pending, reply: PermissionReply, reason: str | None) -> None:
        def answer() -> None:
            if not one.answer.done():
                one.answer.set_result((reply, reason))

        one.loop.call_soon_threadsafe(answer)
        self._announce(
            PermissionReplied(
                id=one.event.id, session_id=self._session_id, reply=reply, reason=reason
            )
        )
