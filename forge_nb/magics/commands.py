"""What the magics do: one workbench, one current session, and the words that act on them."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from forge_nb.errors import NotFoundError, UsageError
from forge_nb.magics.options import OPTIONS, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from forge_nb.conversation import Conversation
    from forge_nb.magics.options import Given
    from forge_nb.workbench import Workbench

__all__ = ["COMMANDS", "ForgeMagics"]

_DEFAULT_TITLE = "notebook"
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*)\s*<<\s*(.*)\Z", re.DOTALL)
_NOT_QUERY = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")

COMMANDS = {
    "status": "where you are: store, session, model, context, cost, what waits",
    "sessions": "the sessions of the store",
    "use": "TITLE|ID: go to a session, made when there is none; options choose model and the rest",
    "show": "[SESSION]: its transcript",
    "view": "[STEP]: what the model saw before that step, or would see now",
    "steps": "the session's model calls",
    "compact": "summarise now and put a boundary",
    "abort": "stop the run",
    "fork": "[STEP]: go on in a copy of the session",
    "undo": "take the last question back, with its answer",
    "allow": "[ID]: let a tool do what it waits for, this once",
    "always": "[ID]: let it, and everything like it from now on",
    "reject": "[ID] [REASON …]: do not let it; the reason is told to the model",
    "help": "this page",
}
"""Words after ``%forge`` and what they do."""


class ForgeMagics:
    """The magics and where they stand.

    Parameters
    ----------
    shell
        The running IPython shell.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self._workbench: Workbench | None = None
        self._target: str | None = None
        self._conversation: Conversation | None = None
        self.earlier_handler: tuple[Any, Any] = ((), None)
        """Who handled exceptions before the extension was loaded."""

    # ----------------------------------------------------------------------------- where we are

    @property
    def workbench(self) -> Workbench:
        """The workbench in use: the variable `wb` of the notebook, else ``forge.db``."""
        from forge_nb.workbench import Workbench

        mine = self.shell.user_ns.get("wb")
        if self._target is None and isinstance(mine, Workbench):
            return mine
        if self._workbench is None:
            self._workbench = Workbench(self._target or "forge.db")
        return self._workbench

    @property
    def current(self) -> Conversation | None:
        """The session in use: the one chosen here, else the one that the notebook opened last."""
        chosen = self._conversation
        if chosen is not None and chosen.workbench is self.workbench:
            return chosen
        return self.workbench.latest

    @property
    def conversation(self) -> Conversation:
        """The session in use; the first prompt of a notebook makes one."""
        return self.current or self.workbench.session(_DEFAULT_TITLE)

    def _existing(self) -> Conversation:
        if self.current is None:
            msg = "there is no session yet; prompt with %%forge, or %forge use TITLE --model M"
            raise UsageError(msg)
        return self.current

    def _choose(self, given: Given, *, session: str | None = None) -> None:
        """Go to another store, session, model, agent or strategy, as far as a line says so."""
        options = given.options
        db = options.get("db")
        if db is not None and db != self._target:
            self.close()
            self._target = db
        session = options.get("session", session)
        model, agent, strategy = (options.get(key) for key in ("model", "agent", "strategy"))
        if session is None and model is None and agent is None and strategy is None:
            return
        held = self.current
        title = session or (held.id if held else _DEFAULT_TITLE)
        if session is None and held is not None:
            model, agent = model or held.model, agent or held.agent
        chosen = self.workbench.session(title, model=model, agent=agent)
        changed = {"strategy": strategy} if strategy else {}
        self._conversation = chosen.with_settings(**changed) if changed else chosen

    def close(self) -> None:
        """Close the workbench that the magics opened; never the notebook's own."""
        self._conversation = None
        if self._workbench is not None:
            self._workbench.close()
            self._workbench = None

    # ------------------------------------------------------------------------------- the magics

    async def prompt(self, line: str, cell: str) -> Any:
        """Send the cell's text as a prompt to the current session; the answer arrives live.

        The interrupt button aborts the run cleanly: what was said so far is kept. ``%forge help``
        lists the options; ``@name`` in the text adds a file of the working folder.
        """
        given = parse(line)
        if given.words:
            msg = f"%%forge takes options only, got {given.words}; the prompt is the cell's text"
            raise UsageError(msg)
        self._choose(given)
        try:
            return await self.conversation.prompt(
                cell.strip(),
                files=given.files,
                system=given.options.get("system"),
                show=False if "no-show" in given.options else None,
            )
        except asyncio.CancelledError:
            print("forge: aborted; what was said so far is kept")  # noqa: T201  a magic's answer
            return None

    def line(self, line: str) -> Any:
        """Say where you are, or do something with the current session.

        ``%forge help`` lists the words: sessions, use, show, view, steps, compact, abort, fork,
        undo, allow, always, reject.
        """
        given = parse(line)
        command, *rest = given.words or ["status"]
        commands: dict[str, Callable[..., Any]] = {
            "status": lambda: _say(self.status()),
            "sessions": self._sessions,
            "use": lambda *_: self.current,
            "show": self._show,
            "view": self._view,
            "steps": self._steps,
            "compact": self._compact,
            "abort": self._abort,
            "fork": self._fork,
            "undo": self._undo,
            "allow": lambda *words: self._answer("once", *words),
            "always": lambda *words: self._answer("always", *words),
            "reject": lambda *words: self._answer("reject", *words),
            "help": lambda *_: _say(help_text()),
        }
        if command not in commands:
            msg = f"%forge has no command {command!r}; it has {list(COMMANDS)}"
            raise UsageError(msg)
        session = (rest or [_DEFAULT_TITLE])[0] if command == "use" else None
        self._choose(given, session=session)
        most = None if command == "reject" else 1
        if most is not None and len(rest) > most:
            msg = f"%forge {command} takes one word, got {rest}; put a title in quotation marks"
            raise UsageError(msg)
        return commands[command](*rest)

    def sql(self, line: str, cell: str | None = None) -> Any:
        """Run a query over the views and return a frame.

        ``df = %forge_sql select …`` and ``%%forge_sql df <<`` keep it under a name; ``$name`` in
        the query stands for the value of a variable, which is bound, never pasted.
        """
        if cell is not None and cell.strip():
            target, query = line, cell
            found = _ASSIGNS.fullmatch(target) if target.strip() else None
            if target.strip() and (found is None or found.group(2).strip()):
                msg = f"%%forge_sql takes a name to keep the frame under: NAME <<, not {target!r}"
                raise UsageError(msg)
            name = found.group(1) if found else None
        else:
            found = _ASSIGNS.fullmatch(line)
            name, query = (found.group(1), found.group(2)) if found else (None, line)
        query = _expanded(query, self.shell.user_ns)
        frame = self.workbench.sql(query, self._values(query) or None)
        if name is None:
            return frame
        self.shell.user_ns[name] = frame
        return None

    def _values(self, query: str) -> dict[str, Any]:
        """Return the values of the variables that a query names."""
        names = dict.fromkeys(_VARIABLE.findall(_NOT_QUERY.sub(" ", query)))
        missing = [name for name in names if name not in self.shell.user_ns]
        if missing:
            msg = (
                f"the query asks for ${missing[0]}, and there is no variable {missing[0]!r}; set it"
            )
            raise UsageError(msg)
        return {name: self.shell.user_ns[name] for name in names}

    # ------------------------------------------------------------------------------ the commands

    def status(self) -> str:
        """Return where we are; looking makes nothing."""
        current = self.current
        lines = [f"store    {self.workbench.store.url}"]
        if current is None:
            lines.append("session  none yet: %forge use TITLE --model M, or prompt with %%forge")
            return "\n".join(lines)
        lines.append(f"session  {current.title} ({current.id})")
        lines.append(f"model    {current.spec or 'none chosen: %forge use TITLE --model M'}")
        if current.agent:
            lines.append(f"agent    {current.agent}")
        lines += [f"{name:9}{said}" for name, said in _figures(current).items()]
        return "\n".join(lines)

    def _sessions(self) -> Any:
        columns = ["id", "title", "model", "steps", "compactions", "cost_usd", "updated_at"]
        return self.workbench.sessions()[columns]

    def _show(self, session: str | None = None) -> Any:
        chosen = self.workbench.session(session) if session else self._existing()
        return chosen.show()

    def _view(self, step: str | None = None) -> Any:
        return self._existing().view(at=int(step) if step and step.isdecimal() else step)

    def _steps(self) -> Any:
        columns = ["step", "purpose", "model", "context_tokens", "tokens_output", "cost_usd"]
        return self._existing().steps()[[*columns, "outcome"]]

    async def _compact(self) -> Any:
        return await self._existing().compact()

    def _abort(self) -> None:
        ran = self.current is not None and self.current.abort()
        _say("forge: stopping the run" if ran else "forge: nothing is running")

    def _fork(self, step: str | None = None) -> Any:
        at = int(step) if step and step.isdecimal() else step
        self._conversation = self._existing().fork(at=at)
        return self._conversation

    def _undo(self) -> None:
        gone = self._existing().undo()
        _say(f"forge: {gone} message{'' if gone == 1 else 's'} taken back; what they cost counts")

    def _answer(self, reply: Any, *words: str) -> None:
        """Answer a tool that waits for leave: the one named, else the oldest."""
        permissions = self._existing().permissions
        waiting = permissions.pending
        known = {one.id: one for one in waiting}
        named = bool(words) and (words[0] in known or words[0].startswith("per_"))
        if not waiting:
            msg = "nothing waits for leave in this session"
            raise NotFoundError(msg)
        request_id = words[0] if named else waiting[0].id
        reason = " ".join(words[1:] if named else words) or None
        permissions.reply(request_id, reply, reason)
        asked = known[request_id]
        _say(f"forge: {reply}: {asked.permission} of {', '.join(asked.patterns)}")


def _figures(current: Conversation) -> dict[str, str]:
    """Return what a session came to, in words; what is unknown says so."""
    steps = current.steps()
    known = steps["context_tokens"].dropna()
    used = f"{int(known.iloc[-1]):,}" if len(known) else "unknown"
    usable = current.usable()
    of = f" of {usable:,} tokens" if usable else " tokens"
    cost = current.cost_usd(tree=True)
    figures = {
        "steps": f"{len(steps)}",
        "context": f"{used}{of} at the last call" if len(known) else "unknown",
        "cost": "unknown" if cost is None else f"${cost:.4f}",
    }
    waiting = current.workbench.store.prompts(current.id, "waiting")
    if waiting:
        figures["waiting"] = f"{len(waiting)} prompt{'' if len(waiting) == 1 else 's'}"
    pending = current.permissions.pending
    if pending:
        first = pending[0]
        asks = f"{first.permission} of {', '.join(first.patterns)} ({first.id})"
        figures["asks"] = f"{asks}: %forge allow | always | reject"
    return figures


def _expanded(query: str, namespace: Mapping[str, Any]) -> str:
    """Put the values of ``{name}`` into a query, which IPython does for magics; as text."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        return str(namespace[name]) if name in namespace else found.group(0)

    return re.sub(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})", value, query)


def help_text() -> str:
    """Return the page that ``%forge help`` prints."""
    width = max(map(len, COMMANDS)) + 2
    lines = ["%forge                what follows may be left out: it means status"]
    lines += [f"  {name:{width}}{about}" for name, about in COMMANDS.items()]
    lines += ["", "%%forge [options]     the cell's text is a prompt, answered live"]
    lines += [f"  {name:13}{option.about}" for name, option in OPTIONS.items()]
    lines += [
        "",
        "%forge_sql QUERY      a frame over sessions, messages, parts, steps, tools, compactions",
        "%%forge_sql [NAME <<] the same for a cell; $name stands for a variable's value",
    ]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text)  # noqa: T201  a magic's answer
