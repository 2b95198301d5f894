"""README's examples run as they are written, one after the other, as a reader would type them."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "notebooks" / "data" / "parser-fix.json"
SESSION = json.loads(RECORDED.read_text("utf-8"))["info"]["id"]


def block(heading: str) -> str:
    """Return the first code block below a heading of README."""
    section = (ROOT / "README.md").read_text("utf-8").split(f"## {heading}\n", 1)[1]
    return section.split("```", 2)[1].split("\n", 1)[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the reader the file that the examples speak of, where a clone has it."""
    data = tmp_path / "notebooks" / "data"
    data.mkdir(parents=True)
    shutil.copyfile(RECORDED, data / RECORDED.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_notebook_example_runs_and_the_magics_go_on_with_its_session(folder: Path) -> None:
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance()
    lines = [line for line in block("In a notebook").splitlines() if line.strip()]
    try:
        for cell in [*lines, "%forge", "%%forge\nAnd then?\n"]:
            source = shell.transform_cell(cell)
            asyncio.run(shell.run_cell_async(cell, transformed_cell=source)).raise_error()
        wb = shell.user_ns["wb"]
        assert [one.id for one in wb.conversations()] == [SESSION]
        answered = wb.store.prompts(SESSION, "answered")
        assert answered[-1].parts[0].text == "And then?"
        wb.close()
    finally:
        shell.run_line_magic("unload_ext", "forge_nb")
        InteractiveShell.clear_instance()
    assert (folder / "forge.db").exists()


def test_what_more_can_be_asked_runs_as_written(folder: Path) -> None:
    shutil.copyfile(ROOT / "README.md", folder / "README.md")
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance()
    try:
        for cell in ["import forge_nb as forge", block("More than a question")]:
            source = shell.transform_cell(cell)
            asyncio.run(shell.run_cell_async(cell, transformed_cell=source)).raise_error()
        wb, s, other = (shell.user_ns[name] for name in ("wb", "s", "other"))
        [first, *_] = s.messages()
        assert [type(part).__name__ for part in first.parts] == [
            "TextPart",
            "TextPart",
            "TextPart",
            "FilePart",
        ]
        assert other.title == "more (fork #1)"
        assert len(other.messages()) > len(s.messages())
        assert any(row.info.parent_id == s.id for row in wb.store.sessions())
        assert not [one for one in wb.verify() if one.level == "failure"]
        wb.close()
    finally:
        InteractiveShell.clear_instance()


def test_the_command_line_examples_run(folder: Path) -> None:
    for line in block("On the command line").splitlines():
        words = shlex.split(line.replace("ses_…", SESSION), comments=True)
        assert words[0] == "forge-nb"
        done = subprocess.run(
            [sys.executable, "-m", "forge_nb", *words[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), line
    assert json.loads((folder / "out.json").read_text("utf-8")) == json.loads(
        RECORDED.read_text("utf-8")
    )
