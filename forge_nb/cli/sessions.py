"""Commands on sessions: import, export, view, sessions, verify, sql, run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_nb.cli.output import fail, say, show, tell
from forge_nb.errors import NotFoundError, UsageError
from forge_nb.exchange.export import export_session
from forge_nb.exchange.load import load
from forge_nb.exchange.report import ImportReport
from forge_nb.providers.registry import resolve_model
from forge_nb.providers.tape_specs import record
from forge_nb.store.open import open_store
from forge_nb.store.verify import verify
from forge_nb.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge_nb.conversation import Conversation

__all__ = ["Db", "Style", "register"]

Db = Annotated[Path, typer.Option("--db", help="The store.", show_default=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SessionName = Annotated[str, typer.Argument(help="An id, the beginning of one, or a title.")]
_DEFAULT_DB = Path("forge.db")


class Style(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


Format = Annotated[Style, typer.Option("--format", help="How rows are printed.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("import")(import_)
    for command in (export, view, sessions, verify_, sql, run):
        app.command(command.__name__.rstrip("_"))(command)


@contextlib.contextmanager
def _opened(db: Path) -> Iterator[Workbench]:
    """Open an existing store."""
    open_store(db, must_exist=True).close()
    with Workbench(db) as workbench:
        yield workbench


def _find(workbench: Workbench, name: str) -> Conversation:
    """Return the session of an id, of the beginning of one, or of a title."""
    rows = workbench.store.sessions()
    exact = [row.info.id for row in rows if name in {row.info.id, row.info.title}]
    found = exact or [row.info.id for row in rows if row.info.id.startswith(name)]
    if not found:
        msg = f"there is no session {name!r} in {workbench.store.url}; list them: forge-nb sessions"
        raise NotFoundError(msg, session=name)
    if len(found) > 1:
        msg = f"{len(found)} sessions match {name!r}: {found}; give a whole id"
        raise UsageError(msg, session=name)
    return workbench.session(found[0])


def import_(
    paths: Annotated[list[Path], typer.Argument(help="Exports and opencode.db files.")],
    db: Db = _DEFAULT_DB,
    as_json: AsJson = False,
) -> None:
    """Bring sessions in; all or nothing per file, twice is once."""
    with open_store(db) as store:
        report = _load(store, paths)
    if as_json:
        sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    elif report.sessions:
        say(str(ImportReport(sessions=report.sessions)))
    for one in report.skipped:
        tell(one.reason)
    if report.skipped:
        raise SystemExit(1 if len(report.skipped) < len(paths) else 2)


def _load(store: Any, paths: list[Path]) -> ImportReport:
    """Load with a progress bar where somebody watches."""
    if not sys.stderr.isatty():
        return load(store, paths)
    from rich.progress import Progress  # noqa: PLC0415  only where somebody watches

    with Progress(transient=True) as progress:
        bar = progress.add_task("importing", total=None)
        return load(
            store,
            paths,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )


def export(
    session: SessionName,
    db: Db = _DEFAULT_DB,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write.")] = None,
    as_imported: Annotated[bool, typer.Option(help="Only what was imported, as it came.")] = False,
    native: Annotated[bool, typer.Option(help="Add what only forge_nb knows.")] = False,
) -> None:
    """Give a session back as the JSON it came in."""
    with _opened(db) as workbench:
        found = _find(workbench, session)
        whole = export_session(workbench.store, found.id, as_imported=as_imported, native=native)
    text = json.dumps(whole, indent=2) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        fail(f"{output}: cannot be written ({error.strerror}); mend the path")


def view(
    session: SessionName,
    db: Db = _DEFAULT_DB,
    at: Annotated[str | None, typer.Option(help="A step from 1, or a message id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the model got for a call; without --at, what the next call would get."""
    with _opened(db) as workbench:
        found = _find(workbench, session)
        place = int(at) if at is not None and at.isdecimal() else at
        seen = found.view(at=place)
        if as_json:
            sys.stdout.write(json.dumps({"session": found.id, **seen.to_dict()}) + "\n")
            return
        say(repr(seen)[1:-1])
        for message in seen.messages:
            for part in message.parts:
                say(f"\n[{message.role} · {part.kind}]\n{part.text}")


def sessions(db: Db = _DEFAULT_DB, style: Format = Style.TABLE) -> None:
    """List the sessions of a store."""
    columns = ["id", "title", "model", "messages", "steps", "compactions", "cost_usd", "origin"]
    with _opened(db) as workbench:
        show(workbench.sessions()[columns], style)


def verify_(db: Db = _DEFAULT_DB) -> None:
    """Check a store's invariants; exit code 1 when one does not hold."""
    open_store(db, must_exist=True).close()
    with open_store(db) as store:
        findings = verify(store)
    for one in findings:
        say(f"{one.level} {one.code} {one.session_id or ''}: {one.detail}")
    failures = sum(one.level == "failure" for one in findings)
    say(f"{db}: {failures} failures, {len(findings) - failures} notes")
    if failures:
        raise SystemExit(1)


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over the views.")],
    db: Db = _DEFAULT_DB,
    style: Format = Style.TABLE,
) -> None:
    """Query sessions, messages, parts, steps, tools, compactions; read-only."""
    with _opened(db) as workbench:
        show(workbench.sql(query), style)


def run(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    model: Annotated[
        str | None, typer.Option(help="PROVIDER:MODEL, such as scripted:tour.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Go on with this session; left out, a new one begins.")
    ] = None,
    record_to: Annotated[
        Path | None, typer.Option("--record", help="Tape to record the run on; needs --model.")
    ] = None,
    db: Db = _DEFAULT_DB,
) -> None:
    """Prompt a model, streaming to the terminal."""
    if record_to is not None:
        if model is None:
            fail("which model is recorded? add --model PROVIDER:MODEL")
        model = record(record_to, model=model)
    if model is not None:
        resolve_model(model)  # a wrong name is told before anything is stored
    elif session is None:
        fail("which model? add --model PROVIDER:MODEL, such as --model scripted:tour")
    with Workbench(db) as workbench:
        if session is None:
            conversation = workbench.new_session(_title(prompt), model=model)
        else:
            conversation = workbench.session(_find(workbench, session).id, model=model)
        result = asyncio.run(conversation.prompt(prompt, show=True))
        say(f"\n{result!r}\nsession {conversation.id}")
    if result.outcome != "completed":
        raise SystemExit(1)


def _title(prompt: str) -> str:
    line = prompt.strip().splitlines()[0] if prompt.strip() else prompt
    return line[:60] or "untitled"
