"""The magics in a real IPython: loading, prompting, querying, errors as one line, unloading."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from forge_nb.errors import ForgeError
from forge_nb.magics.commands import COMMANDS
from forge_nb.magics.options import OPTIONS
from forge_nb.messages.stream import StepFinish, StepStart, ToolCall
from forge_nb.settings import Settings
from forge_nb.testing import memory_workbench
from forge_nb.tools.registry import tool
from tests.helpers import Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge_nb.messages.stream import StreamEvent


@pytest.fixture
def shell() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    made: Any = InteractiveShell.instance()
    made.run_line_magic("load_ext", "forge_nb")
    with memory_workbench("scripted:hello") as wb:
        made.user_ns["wb"] = wb
        yield made
    made.run_line_magic("unload_ext", "forge_nb")
    InteractiveShell.clear_instance()


def run_cell(shell: Any, source: str) -> Any:
    cell = shell.transform_cell(source)
    result = asyncio.run(shell.run_cell_async(source, transformed_cell=cell))
    result.raise_error()
    return result.result


def test_a_prompt_cell_is_awaited_and_shows_its_result(shell: Any) -> None:
    result = run_cell(shell, "%%forge --session greeting\nHello there\n")
    assert result.outcome == "completed"
    wb = shell.user_ns["wb"]
    assert wb.session("greeting").messages()[0].parts[0].text == "Hello there"


def test_a_query_gives_a_frame_as_line_and_as_cell(shell: Any) -> None:
    run_cell(shell, "%%forge\nhi\n")
    run_cell(shell, "df = %forge_sql select count(*) as n from steps")
    assert list(shell.user_ns["df"]["n"]) == [1]
    frame = run_cell(shell, "%%forge_sql\nselect outcome from steps\n")
    assert list(frame["outcome"]) == ["completed"]


def test_compact_is_awaited_from_a_line(shell: Any) -> None:
    run_cell(shell, "%%forge\nhi\n")
    assert run_cell(shell, "%forge compact").outcome in {"done", "not smaller", "blank"}


def test_the_line_magic_says_where_you_are(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_cell(shell, "%forge use elsewhere")
    run_cell(shell, "%forge")
    assert "session  elsewhere" in capsys.readouterr().out
    frame = run_cell(shell, "%forge sessions")
    assert list(frame["title"]) == ["elsewhere"]
    run_cell(shell, "%forge abort")
    assert "nothing is running" in capsys.readouterr().out


def test_looking_makes_nothing(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("%forge", "%forge abort", "%forge sessions"):
        run_cell(shell, line)
    assert "none yet" in capsys.readouterr().out
    assert shell.user_ns["wb"].conversations() == []


def test_a_prompt_cell_goes_on_with_the_session_that_the_notebook_opened(shell: Any) -> None:
    """README opens a session in a cell and goes on with the magic."""
    wb = shell.user_ns["wb"]
    opened = wb.session("mine", model="scripted:echo")
    assert run_cell(shell, "%%forge\nsay this\n").text == "say this"
    assert [one.id for one in wb.conversations()] == [opened.id]


def test_use_takes_a_model_and_the_session_keeps_it(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(shell, "%forge use talk --model scripted:echo")
    assert run_cell(shell, "%%forge\nfirst\n").text == "first"
    wb = shell.user_ns["wb"]
    wb.model = None
    run_cell(shell, "%forge use elsewhere")
    assert run_cell(shell, "%%forge --session talk\nsecond\n").text == "second"
    run_cell(shell, "%forge")
    assert "model    scripted:echo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("%forge dance", "no command 'dance'"),
        ("%forge use --colour red", "unknown option '--colour'"),
        ("%forge use --model", "--model lacks its value"),
        ("%forge use a b", "quotation marks"),
        ("%forge use ses_nope", "no session 'ses_nope'"),
        ("%forge use x --strategy nope\n%forge compact", "no compaction strategy 'nope'"),
        ("%forge use 'unfinished", "quotation"),
        ("%forge view 99", "step 99 does not exist"),
        ("%forge allow", "nothing waits"),
        ("%%forge --file nope.txt\nhi", "nope.txt"),
        ("%%forge --model nope:x\nhi", "'nope:x' is no model"),
        ("%forge_sql select nope from steps", "does not run"),
        ("%forge_sql drop table steps", "read-only"),
        ("%forge_sql select $missing", "no variable 'missing'"),
        ("%%forge_sql two words\nselect 1", "NAME <<"),
        ("wb.session('greeting').view(at=99)", "step 99 does not exist"),
    ],
)
def test_a_mistake_is_one_block_and_no_page_of_traceback(
    shell: Any, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    run_cell(shell, "%%forge --session greeting\nhi\n")
    capsys.readouterr()
    cell = shell.transform_cell(source)
    result = asyncio.run(shell.run_cell_async(source, transformed_cell=cell))
    shown = "".join(capsys.readouterr())

    assert isinstance(result.error_in_exec, ForgeError)
    assert said in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) <= 4
    shell.run_line_magic("tb", "")
    assert "Traceback" in "".join(capsys.readouterr())


def test_an_error_of_somebody_else_is_shown_as_ever(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(shell.run_cell_async("1 / 0", transformed_cell="1 / 0"))
    assert "Traceback" in "".join(capsys.readouterr())


def test_a_frame_is_kept_under_a_name_and_variables_are_bound(shell: Any) -> None:
    run_cell(shell, "%%forge\nhi\n")
    shell.user_ns["wanted"] = "completed' or 1=1 --"
    run_cell(shell, "%forge_sql none << select * from steps where outcome = $wanted")
    assert len(shell.user_ns["none"]) == 0
    shell.user_ns["wanted"] = "completed"
    run_cell(
        shell,
        "%%forge_sql some <<\nselect '$wanted' as literal from steps -- $not\n"
        "where outcome = $wanted\n",
    )
    assert list(shell.user_ns["some"]["literal"]) == ["$wanted"]
    shell.user_ns["column"] = "outcome"
    frame = run_cell(shell, "%forge_sql select {column}, {'a': 1} as pair from steps")
    assert list(frame["outcome"]) == ["completed"]


def test_the_words_act_on_the_current_session(
    shell: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("read me")
    run_cell(shell, f"%%forge --session first --file '{note}' --no-show --strategy truncate\nhi\n")
    [question, _] = shell.user_ns["wb"].session("first").messages()
    assert any("read me" in getattr(part, "text", "") for part in question.parts)
    assert list(run_cell(shell, "%forge steps")["outcome"]) == ["completed"]
    assert "model view before step 1" in repr(run_cell(shell, "%forge view 1"))
    fork = run_cell(shell, "%forge fork")
    run_cell(shell, "%forge")
    said = capsys.readouterr().out
    assert f"session  {fork.title}" in said
    assert "cost" in said
    assert "context" in said
    run_cell(shell, "%forge use first")
    run_cell(shell, "%forge undo")
    assert "2 messages taken back" in capsys.readouterr().out
    assert shell.user_ns["wb"].session("first").messages() == []


async def test_a_tool_that_waits_is_let_go_by_a_word(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    @tool(permission="deploy")
    def ship() -> str:
        """Ship it."""
        return "shipped"

    calls: list[list[StreamEvent]] = [
        [
            StepStart(),
            ToolCall(call_id="c", tool="ship", input={}),
            StepFinish(reason="tool-calls"),
        ],
        text("done"),
    ]
    settings = Settings(asks=True)
    with workbench(Saying(*calls), tools=[ship], settings=settings) as wb:
        shell.user_ns["wb"] = wb
        s = wb.session("ship")
        run = asyncio.ensure_future(s.prompt("go"))
        await wait_for(lambda: bool(s.permissions.pending))
        magics = shell._forge_magics
        assert "%forge allow" in magics.status()
        magics.line("allow")
        assert (await run).outcome == "completed"
        assert list(wb.tools()["status"]) == ["completed"]
    assert "once: deploy" in capsys.readouterr().out


def test_help_tells_every_word_and_option(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_cell(shell, "%forge help")
    page = capsys.readouterr().out
    assert all(word in page for word in [*COMMANDS, *OPTIONS])
    assert max(map(len, page.splitlines())) <= 100
    for name in ("%forge", "%%forge", "%forge_sql"):
        assert "<no docstring>" not in shell.object_inspect_text(name)


def test_loading_twice_changes_nothing_and_unloading_takes_everything_back() -> None:
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance()
    before = len(shell.input_transformers_cleanup)
    shell.run_line_magic("load_ext", "forge_nb")
    held = shell._forge_magics
    shell.run_line_magic("reload_ext", "forge_nb")
    shell.extension_manager.load_extension("forge_nb")
    assert len(shell.input_transformers_cleanup) == before + 1
    assert shell._forge_magics is not held
    shell.run_line_magic("unload_ext", "forge_nb")
    assert len(shell.input_transformers_cleanup) == before
    assert "forge" not in shell.magics_manager.magics["cell"]
    assert "forge_sql" not in shell.magics_manager.magics["line"]
    InteractiveShell.clear_instance()


def test_the_options_are_completed(shell: Any) -> None:
    def offered(typed: str) -> list[str]:
        with provisionalcompleter():
            return [one.text for one in shell.Completer.completions(typed, len(typed))]

    shell.user_ns["wb"].session("my talk")
    assert "--model" in offered("%forge --m")
    assert "--file" in offered("%%forge --session x --fi")
    assert "compact" in offered("%forge comp")
    assert "'my talk'" in offered("%forge use my")
    assert "'my talk'" in offered("%forge use 'my t")
    assert "'my talk'" in offered("%%forge --session ")
    assert "scripted:tour" in offered("%%forge --model scripted:t")
    assert offered("%%forge --strategy tr") == ["truncate"]
    assert "general" in offered("%%forge --agent gen")
    assert "CHANGELOG.md" in offered("%%forge --file CHANGE")
    assert "forge_nb/settings.py" in offered("%%forge --file forge_nb/sett")
