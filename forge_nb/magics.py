"""`%load_ext forge_nb`: prompt, look and query from cells.

===================== ==================================================================
``%%forge [options]`` send the cell's text as a prompt; awaited, the interrupt button aborts
``%forge``            where you are; ``sessions``, ``use``, ``show``, ``compact``, ``abort``
``%%forge_sql``       run the cell as SQL over the views; ``df = %forge_sql select …`` gives a frame
===================== ==================================================================

Loading imports nothing heavy and can be done twice; unloading takes everything back.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ForgeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from forge_nb.conversation import Conversation
    from forge_nb.workbench import Workbench

__all__ = ["ForgeMagics", "load_ipython_extension", "unload_ipython_extension"]

_DEFAULT_TITLE = "notebook"
_OPTIONS = ("--session", "--model", "--db", "--no-show")
_ATTRIBUTE = "_forge_magics"

_HELP = """\
%forge                     where you are: store, session, model
%forge sessions            the sessions of the store
%forge use TITLE|ID [--model M] [--db FILE]
%forge show [SESSION]      the session's transcript, live while it runs
%forge compact             summarise now and put a boundary
%forge abort               stop the run
%%forge [--session S] [--model M] [--db FILE] [--no-show]
                           the cell's text is the prompt
%%forge_sql                the cell's text is a query over sessions, messages, parts, steps,
                           tools, compactions"""


class ForgeMagics:
    """The magics and where they stand: one workbench, one current session.

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

    @property
    def workbench(self) -> Workbench:
        """The workbench in use: the variable `wb` of the notebook, else ``forge.db``."""
        from forge_nb.workbench import Workbench  # noqa: PLC0415  heavy

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

    def use(
        self, session: str | None = None, *, model: str | None = None, db: str | None = None
    ) -> None:
        """Go to another store, session or model."""
        if db is not None and db != self._target:
            self.close()
            self._target = db
        if session is not None:
            self._conversation = self.workbench.session(session, model=model)
        elif model is not None:
            held = self.current.id if self.current else _DEFAULT_TITLE
            self._conversation = self.workbench.session(held, model=model)

    def close(self) -> None:
        """Close the workbench that the magics opened; never the notebook's own."""
        self._conversation = None
        if self._workbench is not None:
            self._workbench.close()
            self._workbench = None

    async def prompt(self, line: str, cell: str) -> Any:
        """Send a prompt; an interrupt aborts it cleanly and leaves the session as it is."""
        words, options = _parse(line)
        if words:
            msg = f"%%forge takes options only, got {words}; the prompt is the cell's text"
            raise UsageError(msg)
        self.use(options.get("session"), model=options.get("model"), db=options.get("db"))
        show = False if "no-show" in options else None
        try:
            return await self.conversation.prompt(cell.strip(), show=show)
        except asyncio.CancelledError:
            print("forge: aborted; what was said so far is kept")  # noqa: T201
            return None

    def line(self, line: str) -> Any:
        """Run ``%forge …``; returns something to show, or an awaitable for ``compact``."""
        words, options = _parse(line)
        command, *rest = words or ["status"]
        commands: dict[str, Callable[..., Any]] = {
            "status": self._status,
            "sessions": self._sessions,
            "use": lambda *_: self.current,
            "show": self._show,
            "compact": self._compact,
            "abort": self._abort,
            "help": lambda: print(_HELP),  # noqa: T201
        }
        if command not in commands:
            msg = f"%forge has no command {command!r}; it has {sorted(commands)}"
            raise UsageError(msg)
        chosen = (rest or [_DEFAULT_TITLE])[0] if command == "use" else None
        self.use(chosen, model=options.get("model"), db=options.get("db"))
        return commands[command](*rest[:1])

    def _status(self) -> None:
        """Say where we are; looking makes nothing."""
        current = self.current
        lines = [f"store    {self.workbench.store.url}"]
        if current is None:
            lines.append("session  none yet: %forge use TITLE --model M, or prompt with %%forge")
        else:
            lines.append(f"session  {current.title} ({current.id})")
            lines.append(f"model    {current.spec or 'none chosen: %forge use TITLE --model M'}")
            lines.append(f"steps    {len(current.steps())}")
        print("\n".join(lines))  # noqa: T201

    def _sessions(self) -> Any:
        columns = ["id", "title", "model", "steps", "compactions", "cost_usd", "updated_at"]
        return self.workbench.sessions()[columns]

    def _show(self, session: str | None = None) -> Any:
        chosen = self.workbench.session(session) if session else self.conversation
        return chosen.show()

    async def _compact(self) -> Any:
        return await self.conversation.compact()

    def _abort(self) -> None:
        ran = self.current is not None and self.current.abort()
        print("forge: stopping the run" if ran else "forge: nothing is running")  # noqa: T201

    def sql(self, line: str, cell: str | None = None) -> Any:
        """Run a query over the views; returns a frame."""
        return self.workbench.sql(cell if cell and cell.strip() else line)


def _parse(line: str) -> tuple[list[str], dict[str, str]]:
    """Split a magic's line into words and ``--name value`` options."""
    words: list[str] = []
    options: dict[str, str] = {}
    try:
        tokens = iter(shlex.split(line))
    except ValueError as error:
        msg = f"{line!r} cannot be read ({error}); close the quotation"
        raise UsageError(msg) from error
    for token in tokens:
        if not token.startswith("--"):
            words.append(token)
            continue
        name, has_value, value = token[2:].partition("=")
        if f"--{name}" not in _OPTIONS:
            msg = f"unknown option {token!r}; there are {list(_OPTIONS)}"
            raise UsageError(msg)
        options[name] = value if has_value or name == "no-show" else next(tokens, "")
    return words, options


def _await_cell_magic(lines: list[str]) -> list[str]:
    """Rewrite a cell that starts with ``%%forge`` into an awaited call of its magic.

    IPython never awaits what a cell magic returns; an awaited expression in the cell runs on the
    kernel's loop, shows its result, and is cancelled by the interrupt button.
    """
    lines = [_awaited_line(line) for line in lines]
    for place, line in enumerate(lines):
        if not line.strip():
            continue
        head, _, rest = line.rstrip("\n").partition(" ")
        if head.rstrip("\n") != "%%forge":
            return lines
        body = "".join(lines[place + 1 :])
        call = f"get_ipython().run_cell_magic('forge', {rest.strip()!r}, {body!r})"
        return [f"await {call}\n"]
    return lines


def _awaited_line(line: str) -> str:
    """Await ``%forge compact``, which runs a model."""
    words = line.split()
    if words[:2] != ["%forge", "compact"]:
        return line
    return f"await get_ipython().run_line_magic('forge', {' '.join(words[1:])!r})\n"


def _complete(context: Any) -> dict[str, Any]:
    """Offer the options of ``%forge`` and ``%%forge``."""
    from IPython.core.completer import SimpleCompletion  # noqa: PLC0415  heavy

    typed = context.line_with_cursor[: context.cursor_position].lstrip()
    found = []
    if typed.startswith(("%forge ", "%%forge ")):
        commands = ("status", "sessions", "use", "show", "compact", "abort", "help")
        offered = _OPTIONS if context.token.startswith("-") else commands
        found = [
            SimpleCompletion(text=o, type="param") for o in offered if o.startswith(context.token)
        ]
    return {"completions": found, "suppress": bool(found), "matched_fragment": context.token}


_complete.matcher_identifier = "forge"  # type: ignore[attr-defined]
_complete.matcher_api_version = 2  # type: ignore[attr-defined]


def _shown(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn our own errors into one clear line instead of a traceback."""

    def run(*args: Any) -> Any:
        from IPython.core.error import UsageError as ShownError  # noqa: PLC0415  heavy

        try:
            return call(*args)
        except ForgeError as error:
            raise ShownError(f"forge: {error}") from None

    return run


def _shown_async(call: Callable[..., Any]) -> Callable[..., Any]:
    async def run(*args: Any) -> Any:
        from IPython.core.error import UsageError as ShownError  # noqa: PLC0415  heavy

        try:
            return await call(*args)
        except ForgeError as error:
            raise ShownError(f"forge: {error}") from None

    return run


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; a second load changes nothing."""
    if getattr(shell, _ATTRIBUTE, None) is not None:
        return
    magics = ForgeMagics(shell)
    setattr(shell, _ATTRIBUTE, magics)
    register: Callable[..., None] = shell.register_magic_function
    register(_shown_async(magics.prompt), "cell", "forge")
    register(_shown(magics.line), "line", "forge")
    register(_shown(magics.sql), "line_cell", "forge_sql")
    shell.input_transformers_cleanup.append(_await_cell_magic)
    shell.Completer.custom_matchers.append(_complete)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take back everything that loading did."""
    magics = getattr(shell, _ATTRIBUTE, None)
    if magics is None:
        return
    magics.close()
    delattr(shell, _ATTRIBUTE)
    for kind in ("line", "cell"):
        for name in ("forge", "forge_sql"):
            shell.magics_manager.magics[kind].pop(name, None)
    if _await_cell_magic in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(_await_cell_magic)
    matchers = shell.Completer.custom_matchers
    if _complete in matchers:
        matchers.remove(_complete)
