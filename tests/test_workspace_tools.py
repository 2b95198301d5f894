"""Tools on files and the shell: what they do, what they ask, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.errors import ToolError, ToolRejectedError, UsageError
from forge_nb.messages.parts import (
    PatchPart,
    StepFinishPart,
    StepStartPart,
    ToolCompleted,
    ToolPart,
)
from forge_nb.messages.stream import StepFinish, StepStart, StreamEvent, ToolCall
from forge_nb.settings import Settings
from forge_nb.tools.permissions import Rule
from forge_nb.tools.registry import ToolContext, ToolOutput, ToolRegistry
from forge_nb.tools.shell import environment
from forge_nb.tools.snapshots import GitSnapshots
from forge_nb.tools.workspace import workspace_tools
from tests.helpers import USED, Saying, text, wait_for, workbench

if TYPE_CHECKING:
    from pathlib import Path

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Space:
    """A folder with its tools, and what they asked."""

    def __init__(self, root: Path, *, deny: str | None = None) -> None:
        self.root = root
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.shown: list[dict[str, Any]] = []
        self._deny = deny
        self._registry = ToolRegistry(workspace_tools(root))

    async def run(self, name: str, **given: Any) -> ToolOutput:
        context = ToolContext(
            session_id="s",
            message_id="m",
            call_id="c",
            abort=asyncio.Event(),
            progress=lambda metadata=None, **_: self.shown.append(metadata or {}),
            ask=self._ask,
            workspace=self.root,
        )
        async with asyncio.timeout(20):
            return await self._registry.run(name, given, context)

    async def _ask(self, permission: str, patterns: tuple[str, ...], **_: Any) -> None:
        self.asked.append((permission, tuple(patterns)))
        if permission == self._deny:
            msg = "no"
            raise ToolRejectedError(msg, reason=None)


@pytest.fixture
def space(tmp_path: Path) -> Space:
    root = tmp_path / "work"
    root.mkdir()
    (root / "calc.py").write_text("def add(a, b):\n    return a - b\n", "utf-8")
    return Space(root)


async def test_reading_numbers_lines_and_asks_by_the_name_in_the_folder(space: Space) -> None:
    result = await space.run("read", filePath="calc.py")
    assert "1: def add(a, b):" in result.output
    assert space.asked == [("read", ("calc.py",))]
    assert (await space.run("read", filePath=str(space.root))).output.count("calc.py") == 1


async def test_writing_is_asked_and_replaces_in_one_step(space: Space) -> None:
    (space.root / "run.sh").write_text("old", "utf-8")
    (space.root / "run.sh").chmod(0o755)
    await space.run("write", filePath="run.sh", content="new\n")
    await space.run("write", filePath="deep/er/new.txt", content="x")
    assert (space.root / "run.sh").read_text("utf-8") == "new\n"
    assert (space.root / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (space.root / "deep/er/new.txt").read_text("utf-8") == "x"
    assert {path.name for path in space.root.iterdir()} == {"calc.py", "run.sh", "deep"}
    assert ("edit", ("deep/er/new.txt",)) in space.asked


async def test_an_edit_needs_its_text_exactly_once(space: Space) -> None:
    path = space.root / "calc.py"
    result = await space.run("edit", filePath="calc.py", oldString="a - b", newString="a + b")
    assert "return a + b" in path.read_text("utf-8")
    assert result.metadata is not None
    assert "+    return a + b" in result.metadata["diff"]
    for old, new, said in [
        ("nothing", "x", "not in the file"),
        ("a", "x", "times in the file"),
        ("", "x", "empty"),
        ("a", "a", "the same"),
    ]:
        with pytest.raises(ToolError, match=said):
            await space.run("edit", filePath="calc.py", oldString=old, newString=new)
    await space.run("edit", filePath="calc.py", oldString="a", newString="z", replaceAll=True)
    assert "a" not in path.read_text("utf-8").replace("add", "").replace("zdd", "")


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname", "link.txt", "linked/x.txt"])
async def test_what_leads_outside_is_asked_as_such(space: Space, name: str, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret", "utf-8")
    (tmp_path / "elsewhere").mkdir()
    (space.root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (space.root / "linked").symlink_to(tmp_path / "elsewhere")
    strict = Space(space.root, deny="external_directory")
    for tool, more in [("read", {}), ("write", {"content": "x"})]:
        with pytest.raises(ToolRejectedError):
            await strict.run(tool, filePath=name, **more)
    assert {permission for permission, _ in strict.asked} == {"external_directory"}
    assert (tmp_path / "outside.txt").read_text("utf-8") == "secret"
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_bad_paths_and_binary_files_are_errors_for_the_model(space: Space) -> None:
    (space.root / "blob").write_bytes(b"\x00\x01")
    for name, said in [("nope.py", "not found"), ("blob", "cannot be read"), ("a\0b", "no path")]:
        with pytest.raises(ToolError, match=said):
            await space.run("read", filePath=name)
    with pytest.raises(ToolError, match="cannot be written"):
        await space.run("write", filePath="calc.py/below.txt", content="x")


async def test_an_image_is_attached(space: Space) -> None:
    (space.root / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 9)
    result = await space.run("read", filePath="dot.png")
    assert result.output == "Image read successfully"
    assert result.attachments is not None
    assert result.attachments[0]["mime"] == "image/png"


async def test_files_are_found_by_name_and_by_text(space: Space) -> None:
    (space.root / "src").mkdir()
    (space.root / "src" / "b.py").write_text("needle = 1\n", "utf-8")
    (space.root / ".git").mkdir()
    (space.root / ".git" / "c.py").write_text("needle\n", "utf-8")
    found = await space.run("glob", pattern="**/*.py")
    assert sorted(found.output.splitlines()) == ["calc.py", "src/b.py"]
    assert (await space.run("grep", pattern="need.e")).output == "src/b.py:1:needle = 1"
    assert (await space.run("grep", pattern="x", include="*.md")).output == "No matches found"
    with pytest.raises(ToolError, match="leaves the folder"):
        await space.run("glob", pattern="../*")
    with pytest.raises(ToolError):
        await space.run("grep", pattern="(")


async def test_a_pattern_that_backtracks_for_ever_elsewhere_is_harmless(space: Space) -> None:
    (space.root / "long.txt").write_text("a" * 5_000 + "!\n", "utf-8")
    assert (await space.run("grep", pattern="^(a+)+$")).output == "No matches found"


async def test_a_list_of_todos_is_kept_in_the_call(space: Space) -> None:
    todos = [{"content": "a", "status": "pending"}, {"content": "b", "status": "completed"}]
    result = await space.run("todowrite", todos=todos)
    assert result.title == "1 todos"
    assert result.metadata == {"todos": todos, "truncated": False}


# ------------------------------------------------------------------------------------ bash


async def test_a_command_s_output_and_exit_code_come_back(space: Space) -> None:
    result = await space.run("bash", command="echo out; echo err >&2; exit 3", description="try")
    assert result.output == "out\nerr\n"
    assert result.metadata is not None
    assert result.metadata["exit"] == 3
    assert space.asked == [("bash", ("echo out; echo err >&2; exit 3",))]
    await space.run("bash", command="cd . && sudo -n true")
    assert space.asked[-1] == ("bash", ("cd .", "true"))


async def test_secrets_are_not_in_its_environment(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    monkeypatch.setenv("DB_PASSWORD", "hidden-too")
    monkeypatch.setenv("HARMLESS", "seen")
    output = (await space.run("bash", command="env")).output
    assert "hidden" not in output
    assert "HARMLESS=seen" in output
    assert "PATH" in environment()


async def test_much_output_is_cut_and_shown_while_it_comes(space: Space) -> None:
    result = await space.run("bash", command="yes 0123456789 | head -c 10000000")
    assert len(result.output) < 60_000
    assert space.shown
    assert len(space.shown[-1]["output"]) <= 4_000


def processes(mark: str) -> str:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in listed.stdout.splitlines() if mark in line)


async def test_a_command_that_is_too_slow_is_stopped_with_its_children(space: Space) -> None:
    command = "sleep 987.61 & trap '' TERM; sleep 987.61; sleep 987.61"
    result = await space.run("bash", command=command, timeout=200)
    assert "stopped after 200 ms" in result.output
    assert result.metadata is not None
    assert result.metadata["exit"] is None
    await wait_for(lambda: not processes("sleep 987.61"))


async def test_a_child_in_the_background_is_not_waited_for_and_not_left(space: Space) -> None:
    result = await space.run("bash", command="sleep 987.62 & echo started")
    assert result.output == "started\n"
    await wait_for(lambda: not processes("sleep 987.62"))


async def test_cancelling_leaves_nothing_behind(space: Space) -> None:
    task = asyncio.ensure_future(space.run("bash", command="sleep 987.63"))
    await wait_for(lambda: bool(processes("sleep 987.63")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_for(lambda: not processes("sleep 987.63"))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        workspace_tools(tmp_path / "nope")


# ------------------------------------------------------------------------------- snapshots


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "a.txt").write_text("one", "utf-8")
    (root / ".gitignore").write_text("*.log\n", "utf-8")
    return root


@needs_git
def test_changes_are_told_and_undone_without_touching_the_repository(
    repository: Path, tmp_path: Path
) -> None:
    snapshots = GitSnapshots(repository, tmp_path / "trees")
    index = sorted(path.name for path in (repository / ".git").iterdir())
    before = snapshots.track()
    assert before is not None
    assert snapshots.track() == before
    assert snapshots.changed(before) == []
    (repository / "a.txt").write_text("two", "utf-8")
    (repository / "new name.txt").write_text("x", "utf-8")
    (repository / "noise.log").write_text("x", "utf-8")
    changed = snapshots.changed(before)
    assert sorted(changed) == [str(repository / "a.txt"), str(repository / "new name.txt")]
    assert snapshots.restore(before, [*changed, str(tmp_path / "outside")]) == [
        str(tmp_path / "outside")
    ]
    assert (repository / "a.txt").read_text("utf-8") == "one"
    assert not (repository / "new name.txt").exists()
    assert sorted(path.name for path in (repository / ".git").iterdir()) == index


@needs_git
def test_nothing_is_known_where_there_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    snapshots = GitSnapshots(tmp_path / "plain", tmp_path / "trees")
    assert snapshots.track() is None
    assert snapshots.changed("0" * 40) == []


@needs_git
def test_a_step_that_changes_files_stores_what_it_changed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    call = ToolCall(call_id="c", tool="write", input={"filePath": "b.txt", "content": "x"})
    writing: list[StreamEvent] = [StepStart(), call, StepFinish(reason="tool-calls", usage=USED)]
    settings = Settings(rules=(Rule("edit", "*", "allow"),))
    provider = Saying(writing, text("done"))
    with workbench(provider, tools=workspace_tools(repository), settings=settings) as wb:
        conversation = wb.session("t")
        asyncio.run(conversation.prompt("write it"))
        first, last = conversation.messages()[1:]
        [call_part] = [part for part in first.parts if isinstance(part, ToolPart)]
        [patch] = [part for part in first.parts if isinstance(part, PatchPart)]
        [start] = [part for part in first.parts if isinstance(part, StepStartPart)]
        [finish] = [part for part in first.parts if isinstance(part, StepFinishPart)]
        assert isinstance(call_part.state, ToolCompleted)
        assert patch.files == [str(repository / "b.txt")]
        assert patch.hash == start.snapshot
        assert finish.snapshot not in {None, start.snapshot}
        assert not [part for part in last.parts if isinstance(part, PatchPart)]
        assert not [one for one in wb.verify() if one.level == "failure"]


# ------------------------------------------------------------------- asking, in a whole run


def test_a_person_is_asked_and_the_answer_decides(tmp_path: Path) -> None:
    call = ToolCall(call_id="c", tool="write", input={"filePath": "b.txt", "content": "x"})
    writing: list[StreamEvent] = [StepStart(), call, StepFinish(reason="tool-calls", usage=USED)]

    async def main(conversation: Any, *answer: Any) -> Any:
        task = asyncio.ensure_future(conversation.prompt("write it"))
        await wait_for(lambda: bool(conversation.permissions.pending))
        [asked] = conversation.permissions.pending
        assert (asked.permission, asked.patterns) == ("edit", ("b.txt",))
        assert "+x" in asked.metadata["diff"]
        conversation.permissions.reply(asked.id, *answer)
        return await task

    for answer, outcome, exists in [
        (("reject",), "failed", False),
        (("reject", "put it elsewhere"), "completed", False),
        (("once",), "completed", True),
    ]:
        provider = Saying(writing, text("done"))
        settings = Settings(asks=True)
        with workbench(provider, tools=workspace_tools(tmp_path), settings=settings) as wb:
            result = asyncio.run(main(wb.session("t"), *answer))
        assert result.outcome == outcome
        assert (tmp_path / "b.txt").exists() is exists


def test_without_a_person_asking_means_no_and_the_run_ends(tmp_path: Path) -> None:
    call = ToolCall(call_id="c", tool="bash", input={"command": "touch made"})
    provider = Saying([StepStart(), call, StepFinish(reason="tool-calls", usage=USED)])
    with workbench(provider, tools=workspace_tools(tmp_path)) as wb:
        result = asyncio.run(wb.session("t").prompt("run it"))
    assert result.outcome == "failed"
    assert "nobody is there" in (result.error or "")
    assert not (tmp_path / "made").exists()
