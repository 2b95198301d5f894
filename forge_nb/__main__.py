"""``forge-nb`` and ``python -m forge_nb``: everything that does not need a notebook."""

from __future__ import annotations

import sys

import typer

from forge_nb import __version__
from forge_nb.cli.lab import lab
from forge_nb.cli.output import fail
from forge_nb.cli.sessions import register
from forge_nb.errors import ForgeError

__all__ = ["app", "main"]

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
    """Run the command line; an error of ours is one line and exit code 2."""
    try:
        app()
    except ForgeError as error:
        fail(error)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; there is nobody to tell
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        fail("stopped; what was said so far is kept", code=130)


if __name__ == "__main__":
    main()
