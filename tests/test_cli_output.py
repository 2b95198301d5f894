"""What the command line prints where text is hostile, options are wrong, or nobody reads on."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.__main__ import main
from tests.lookalikes import SESSION, export_of, write_database, write_export

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE = 'a\x1b[2J\x7f\x85b\u202ec\nd,"e"</script>\u00e9'


@pytest.fixture
def forge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in a folder of its own; gives exit code, output, and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forge-nb", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def hostile(forge: Callable[..., Any], tmp_path: Path) -> None:
    """A store whose one session has a hostile title and text."""
    export = export_of()
    export["info"]["title"] = HOSTILE
    export["messages"][-1]["parts"][3]["text"] = HOSTILE
    assert forge("import", write_export(tmp_path / "a.json", export))[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("nobody",),
        ("import",),
        ("import", "--bogus", "x"),
        ("sql", "select 1", "--format", "xml"),
        ("view",),
        ("run", "hi"),
        ("run", "hi", "--model", "nobody:x"),
        ("run", "hi", "--model"),
        ("sessions", "--db", "nothing.db"),
    ],
)
def test_a_wrong_command_is_one_line_and_writes_nothing(
    forge: Callable[..., tuple[int, str, str]], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code, out, err = forge(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("forge-nb: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_command_it_says_which_there_are(
    forge: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = forge()
    assert code == 0
    for command in ("import", "export", "view", "sessions", "verify", "sql", "run", "lab"):
        assert command in out


@pytest.mark.usefixtures("hostile")
def test_a_table_shows_hostile_text_and_does_not_obey_it(
    forge: Callable[..., tuple[int, str, str]],
) -> None:
    for command in (("sessions",), ("view", SESSION), ("sql", "select title from sessions")):
        code, out, _ = forge(*command)
        assert code == 0
        assert r"a\x1b[2J\x7f\x85b\u202ec" in out
        assert all(char.isprintable() or char == "\n" for char in out)


@pytest.mark.usefixtures("hostile")
def test_json_and_csv_hold_text_exactly(forge: Callable[..., tuple[int, str, str]]) -> None:
    query = "select title from sessions"
    _, out, _ = forge("sql", query, "--format", "json")
    assert json.loads(out) == [{"title": HOSTILE}]
    _, out, _ = forge("sql", query, "--format", "csv")
    assert list(csv.reader(io.StringIO(out, newline=""))) == [["title"], [HOSTILE]]
    _, out, _ = forge("export", SESSION)
    assert json.loads(out)["info"]["title"] == HOSTILE
    _, out, _ = forge("view", SESSION, "--json")
    assert json.loads(out)["messages"][-1]["parts"][-1]["text"] == HOSTILE


def test_a_session_is_found_by_id_by_its_beginning_and_by_title(
    forge: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    exports = [export_of(session_id=f"ses_{name}") for name in ("one", "two", "twin")]
    forge("import", write_database(tmp_path / "a.db", exports))
    for name in ("ses_two", "ses_o", "look-alike ses_twin"):
        assert forge("view", name)[0] == 0
    code, _, err = forge("view", "ses_tw")
    assert code == 2
    assert "2 sessions match 'ses_tw'" in err
    assert forge("view", "ses_one", "--at", "2")[0] == 0
    for at in ("0", "3", "-1", "\u00b2", "msg_ses_one_0a"):
        code, _, err = forge("view", "ses_one", "--at", at)
        assert code == 2
        assert "1 to 2" in err


def test_a_file_that_cannot_be_written_is_named(
    forge: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    forge("import", write_export(tmp_path / "a.json", export_of()))
    code, _, err = forge("export", SESSION, "-o", tmp_path / "no" / "x.json")
    assert code == 2
    assert "x.json: cannot be written" in err


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    export = write_export(tmp_path / "a.json", export_of(turns=200))
    forge = f"{sys.executable} -m forge_nb"
    command = (
        f"{forge} import {export} --db {tmp_path / 'f.db'} | true\n"
        f"{forge} export {SESSION} --db {tmp_path / 'f.db'} | head -c 10\n"
        f"{forge} sessions --db {tmp_path / 'f.db'} | true"
    )
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)  # noqa: S602  a pipe is the point
    assert ran.stderr == ""
