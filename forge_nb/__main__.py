"""``forge-nb`` and ``python -m forge_nb``: everything that does not need a notebook."""

from __future__ import annotations

import io
import os
import sys

import typer

from forge_nb import __version__
from forge_nb.cli.lab import lab
from forge_nb.cli.output import tell
from forge_nb.cli.sessions import register
from forge_nb.errors import ForgeError

__all__ = ["app", "main"]

_INTERRUPTED = 130  # what a shell expects after Ctrl-C
_STOPPED_READING = 1

app = typer.Typer(
    name="forge-nb",
    help="A workbench for the memory of LLM agents. Every command takes --db FILE.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
register(app)
app.command()(lab)


@app.callback(invoke_without_command=True)
def _top(
    version: bool = typer.Option(False, "--version", help="Print the version."),  # noqa: FBT003
) -> None:
    """Print the version when asked."""
    if version:
        sys.stdout.write(f"{__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever the terminal can show
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone. Python flushes once more at the end; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _STOPPED_READING
    sys.exit(code)


def _run() -> int:
    """Run the command that was asked for; return the exit code."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="forge-nb", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except (ForgeError, typer.TyperException) as error:
        return tell(f"{error}" if isinstance(error, ForgeError) else f"{error.format_message()}")
    except BrokenPipeError:
        raise
    except OSError as error:
        return tell(f"{error.filename or 'the system'}: {error.strerror}; mend it and try again")
    if code == _INTERRUPTED:
        return tell("stopped; what was said so far is kept", code=_INTERRUPTED)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
