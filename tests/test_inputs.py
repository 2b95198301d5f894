"""Prompts with files, mentions and flags: what is stored, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.errors import UsageError
from forge_nb.files import MAX_MEDIA_BYTES, file_text, inside, sniff_mime
from forge_nb.inputs import File, Mention, PartSource, Text, resolve_inputs
from forge_nb.messages.parts import AgentPart, FilePart, TextPart
from forge_nb.messages.render import MediaSupport
from tests.helpers import Saying, text, workbench

if TYPE_CHECKING:
    from forge_nb.inputs import Input
    from forge_nb.messages.parts import Part

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 20


def parts(given_: Any, root: Path, *, may_fail: bool = False) -> list[Part]:
    ids = iter(range(1_000))
    source = PartSource(
        session_id="s",
        message_id="m",
        new_id=lambda prefix: f"{prefix}_{next(ids)}",
        workspace=root,
        agents=frozenset({"general"}),
        may_fail=may_fail,
    )
    return resolve_inputs(given_, source)


def words(found: list[Part]) -> list[str]:
    return [part.text for part in found if isinstance(part, TextPart)]


def test_a_text_file_is_read_with_numbered_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one\ntwo\n", "utf-8")
    called, content, file = parts([Text("look"), path], tmp_path)[1:]
    assert isinstance(called, TextPart)
    assert called.synthetic
    assert called.text.startswith("Called the Read tool with the following input: {")
    assert isinstance(content, TextPart)
    assert "1: one\n2: two\n\n(End of file - total 2 lines)" in content.text
    assert isinstance(file, FilePart)
    assert (file.mime, file.filename) == ("text/plain", "a.py")


def test_a_range_of_lines_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 11)), "utf-8")
    (tmp_path / "sub").mkdir()
    cut = words(parts(File(path="a.txt", lines=(3, 4)), tmp_path))[1]
    assert "3: 3\n4: 4\n" in cut
    assert "5: 5" not in cut
    assert "go on at line 5" in cut
    listing = words(parts(tmp_path, tmp_path))[1]
    assert "a.txt\nsub/\n\n(2 entries)" in listing


def test_an_image_is_known_by_its_bytes_and_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "really_text.txt"
    path.write_bytes(PNG)
    file = parts(path, tmp_path)[-1]
    assert isinstance(file, FilePart)
    assert file.mime == "image/png"
    assert file.url.startswith("data:image/png;base64,")
    [inline] = parts(File(data=PNG, filename="dot.png"), tmp_path)
    assert isinstance(inline, FilePart)
    assert inline.mime == "image/png"


def test_names_in_a_text_add_files_and_agents_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("x = 1\n", "utf-8")
    asked = "why does @calc.py fail, @general? mail me@example.com or @nobody"
    found = parts(asked, tmp_path)
    [file] = [part for part in found if isinstance(part, FilePart)]
    [agent] = [part for part in found if isinstance(part, AgentPart)]
    assert file.source == {
        "type": "file",
        "path": "calc.py",
        "text": {"value": "@calc.py", "start": 9, "end": 17},
    }
    assert agent.name == "general"


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd", "link.txt", "~/x", "a\x00b"])
def test_a_name_in_a_text_never_leaves_the_workspace(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    root = tmp_path / "work"
    root.mkdir()
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    [only] = parts(f"read @{name} please", root)
    assert isinstance(only, TextPart)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (File(path="nope.txt"), "File not found"),
        (File(data=b"\x00\x01binary"), "takes text, images and PDFs"),
        (File(data=PNG + b"0" * MAX_MEDIA_BYTES), "too many"),
        (File(url="data:image/png;base64,%%%"), "no file"),
        (File(), "no file"),
        (Mention("nobody"), "no agent 'nobody'"),
        ("   ", "blank"),
        ([], "blank"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, given_: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parts(given_, tmp_path)


def test_a_file_that_may_fail_becomes_a_line_that_says_so(tmp_path: Path) -> None:
    called, failed = words(parts(File(path="nope.txt"), tmp_path, may_fail=True))
    assert "nope.txt" in called
    assert failed.startswith("Read tool failed to read nope.txt with the following error: ")


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    with workbench(Saying(text("x"))) as wb:
        conversation = wb.session("t")
        with pytest.raises(UsageError, match="File not found"):
            asyncio.run(conversation.prompt("look", files=[tmp_path / "nope.txt"]))
        assert conversation.messages() == []


def test_flags_decide_what_is_sent_and_telling_asks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("inside\n", "utf-8")
    provider = Saying(text("ok"))
    with workbench(provider) as wb:
        conversation = wb.session("t")

        async def main() -> None:
            await conversation.tell("context only")
            await conversation.prompt(
                [Text("seen"), Text("added", synthetic=True), Text("hidden", ignored=True)],
                files=[path],
                system="Be brief.",
            )

        asyncio.run(main())
        assert wb.store.prompts(conversation.id, "waiting") == []
    [request] = provider.requests
    sent = [part.text for message in request.messages for part in message.parts]
    assert sent[:3] == ["context only", "seen", "added"]
    assert "hidden" not in sent
    assert any("1: inside" in one for one in sent)
    assert request.system == ["Be brief."]


def test_a_model_that_takes_no_images_reads_a_line_instead() -> None:
    class Blind(Saying):
        media = MediaSupport(asked=("text/*",))

    for provider, kind in ((Saying(text("ok")), "file"), (Blind(text("ok")), "text")):
        with workbench(provider) as wb:
            look: list[Input] = [Text("look"), File(data=PNG, filename="dot.png")]
            asyncio.run(wb.session("t").prompt(look))
        [message] = provider.requests[0].messages
        assert message.parts[-1].kind == kind
        assert "dot.png" in message.parts[-1].text


# ------------------------------------------------------------------------------------ files


def test_a_huge_file_gives_its_beginning_and_says_where_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    path.write_text("word\n" * 30_000, "utf-8")
    read = file_text(path)
    assert len(read) < 60_000
    assert "(Lines 1 to 2000 of 30000; go on at line 2001)" in read
    path.write_text("w" * 1_000_000, "utf-8")
    assert len(file_text(path)) < 5_000


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"", "text/plain"),
        ("grün".encode()[:3], "text/plain"),
        (b"\xff\xfe\x00a", "application/octet-stream"),
        (b"\xe9" * 50, "application/octet-stream"),
        (b"GIF89a....", "image/gif"),
        (b"RIFF....WEBPVP8", "image/webp"),
    ],
)
def test_bytes_say_what_they_are(head: bytes, expected: str) -> None:
    assert sniff_mime(head) == expected


@given(st.lists(st.sampled_from(["..", "a", ".", "b/..", "/", "link"]), max_size=8))
def test_inside_never_lets_a_path_out(names: list[str]) -> None:
    root = Path("/definitely/not/there")
    path = root.joinpath(*names)
    if inside(root, path):
        assert path.resolve().is_relative_to(root)
