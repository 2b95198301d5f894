"""The magics in a real IPython: loading, prompting, querying, errors as one line, unloading."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError as ShownError
from IPython.core.interactiveshell import InteractiveShell

from forge_nb.testing import memory_workbench

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    ("magic", "line", "said"),
    [
        ("forge", "dance", "no command 'dance'"),
        ("forge", "use --colour red", "unknown option '--colour'"),
        ("forge", "use ses_nope", "no session 'ses_nope'"),
        ("forge", "use 'unfinished", "quotation"),
        ("forge_sql", "select nope from steps", "does not run"),
        ("forge_sql", "drop table steps", "read-only"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(
    shell: Any, magic: str, line: str, said: str
) -> None:
    with pytest.raises(ShownError, match=said) as caught:
        shell.run_line_magic(magic, line)
    assert "\n" not in str(caught.value)


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

    assert "--model" in offered("%forge --m")
    assert "compact" in offered("%forge comp")
