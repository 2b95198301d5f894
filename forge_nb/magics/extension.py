"""`%load_ext forge_nb`: prompt, look and query from cells.

===================== ==================================================================
``%%forge [options]`` send the cell's text as a prompt; awaited, the interrupt button aborts
``%forge``            where you are; ``%forge help`` lists the rest
``%%forge_sql``       run the cell as SQL over the views; ``df = %forge_sql select …`` gives a frame
===================== ==================================================================

Our own errors show as one block that says what happened and what to do; ``%tb`` has the rest.
Loading imports nothing heavy and can be done twice; unloading takes everything back.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from forge_nb.errors import ForgeError
from forge_nb.magics.commands import COMMANDS, ForgeMagics
from forge_nb.magics.options import completions

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_ATTRIBUTE = "_forge_magics"
_AWAITED = frozenset({"compact"})  # commands that run a model


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; a second load changes nothing."""
    if getattr(shell, _ATTRIBUTE, None) is not None:
        return
    magics = ForgeMagics(shell)
    setattr(shell, _ATTRIBUTE, magics)
    as_typed = importlib.import_module("IPython.core.magic").no_var_expand
    register: Callable[..., None] = shell.register_magic_function
    register(_named(magics.prompt), "cell", "forge")
    register(_named(magics.line), "line", "forge")
    register(as_typed(_named(magics.sql)), "line_cell", "forge_sql")
    shell.input_transformers_cleanup.append(_await_cell_magic)
    shell.Completer.custom_matchers.append(_complete)
    magics.earlier_handler = (shell.custom_exceptions, shell.CustomTB)
    catch: Callable[..., None] = shell.set_custom_exc
    catch((*shell.custom_exceptions, ForgeError), _show_block)


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
    for hooks, hook in (
        (shell.input_transformers_cleanup, _await_cell_magic),
        (shell.Completer.custom_matchers, _complete),
    ):
        if hook in hooks:
            hooks.remove(hook)
    shell.custom_exceptions, shell.CustomTB = magics.earlier_handler


def _named(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function with the method's docstring, which is what ``%forge?`` shows."""

    def run(*args: Any) -> Any:
        return method(*args)

    run.__doc__ = method.__doc__
    run.__name__ = method.__name__
    return run


# ------------------------------------------------------------------------------------- errors


def _show_block(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    **_: Any,
) -> list[str]:
    """Show an error of ours as one block; keep the traceback for ``%tb``."""
    if not isinstance(error, ForgeError):  # somebody else's exception, given to their handler
        shell.showtraceback((kind, error, trace))
        return []
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    block = [f"{kind.__name__}: {error}", "(%tb shows where it was raised)"]
    shell._showtraceback(kind, error, block)  # noqa: SLF001  the one way that a front end hears
    return block


# ------------------------------------------------------------------------------ awaited magics


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
    """Await the commands that run a model."""
    words = line.split()
    if words[:1] != ["%forge"] or not _AWAITED.intersection(words[1:2]):
        return line
    return f"await get_ipython().run_line_magic('forge', {' '.join(words[1:])!r})\n"


# ---------------------------------------------------------------------------------- completion


def _complete(context: Any) -> dict[str, Any]:
    """Offer commands, options and their values."""
    from IPython.core.completer import SimpleCompletion

    typed = context.line_with_cursor[: context.cursor_position].lstrip()
    is_line = typed.startswith("%forge ")
    found: list[Any] = []
    token = _last_word(typed)
    if is_line or typed.startswith("%%forge "):
        shell = importlib.import_module("IPython").get_ipython()
        magics: ForgeMagics = getattr(shell, _ATTRIBUTE)
        words = completions(typed, token, COMMANDS if is_line else {}, lambda: magics.workbench)
        found = [SimpleCompletion(text=word, type="param") for word in words]
    return {"completions": found, "suppress": bool(found), "matched_fragment": token}


def _last_word(typed: str) -> str:
    """Return what is being typed: back to the last blank that no quotation holds."""
    quote, start = "", 0
    for place, letter in enumerate(typed):
        if letter in "'\"" and quote in {"", letter}:
            quote = "" if quote else letter
        elif letter.isspace() and not quote:
            start = place + 1
    return typed[start:]


_complete.matcher_identifier = "forge"  # type: ignore[attr-defined]
_complete.matcher_api_version = 2  # type: ignore[attr-defined]
