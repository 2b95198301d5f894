"""Prompts with files, mentions and flags: what is stored, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb import files
from forge_nb.errors import UsageError
from forge_nb.files import MAX_MEDIA_BYTES, file_text, inside, media_url, sniff_mime
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


def test_a_url_that_names_another_type_than_its_bytes_have_is_written_anew(tmp_path: Path) -> None:
    """Providers refuse a JPEG that is sent as a PNG, then and in every later call."""
    jpeg = base64.b64encode(b"\xff\xd8\xff\xe0" + b"\x00" * 20).decode()
    [file] = parts(File(url=f"data:image/png;base64,{jpeg}", filename="a.png"), tmp_path)
    assert isinstance(file, FilePart)
    assert (file.mime, file.url) == ("image/jpeg", f"data:image/jpeg;base64,{jpeg}")
    as_it_came = f"data:image/png;name=dot;base64,{base64.b64encode(PNG).decode()}"
    [file] = parts(File(url=as_it_came), tmp_path)
    assert isinstance(file, FilePart)
    assert (file.mime, file.url) == ("image/png", as_it_came)


@pytest.mark.parametrize("mime", [None, "text/csv", "application/json", "image/svg+xml"])
def test_text_is_text_whatever_it_is_called(tmp_path: Path, mime: str | None) -> None:
    """A part of another type would be sent beside its words."""
    _, content, file = parts(File(data=b"<a>1</a>", mime=mime, filename="a"), tmp_path)
    assert isinstance(content, TextPart)
    assert isinstance(file, FilePart)
    assert (content.text, file.mime) == ("<a>1</a>", "text/plain")


def test_long_words_in_bytes_are_cut_like_a_tools_output(tmp_path: Path) -> None:
    said = words(parts(File(data=b"word\n" * 100_000), tmp_path))[1]
    assert len(said) < 60_000
    assert said.endswith("characters left out]")


def test_the_lines_of_a_file_url_are_read_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{n}\n" for n in range(1, 11)), "utf-8")
    called, content = words(parts(File(url=f"{path.as_uri()}?start=3&end=4"), tmp_path))
    assert called.endswith(f'{{"filePath":"{path}","offset":3,"limit":2}}')
    assert "\n3: 3\n4: 4\n\n(" in content
    called, content = words(parts(File(url=f"{path.as_uri()}?start=9"), tmp_path))
    assert called.endswith('"offset":9}')
    assert "\n9: 9\n10: 10\n\n(" in content
    assert "\n1: 1\n" in words(parts(File(url=f"{path.as_uri()}?start=-"), tmp_path))[1]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n", "utf-8")
    found = parts(["is @a.txt the same as @a.txt?", "@a.txt, I mean"], tmp_path)
    assert sum(isinstance(part, FilePart) for part in found) == 1


@pytest.mark.parametrize("name", ["x" * 300, "pipe", "loop", "gone.txt", "a/b/../../nope"])
def test_a_name_that_leads_to_no_file_is_a_word(tmp_path: Path, name: str) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    [only] = parts(f"what is @{name} here", tmp_path)
    assert isinstance(only, TextPart)


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
        (File(url="data:;base64"), "no file"),
        (File(url="https://example.com/a,b.png"), "no file"),
        (File(url="file://elsewhere/etc/hosts"), "no file"),
        (File(url="file://["), "no file"),
        (File(url="file:///a%00b"), "File not found"),
        (File(path="x" * 300), "cannot be read"),
        (File(data=b"words", mime="image/png"), "said to be image/png is text/plain"),
        (File(url="data:image/png;base64,d29yZHM="), "said to be image/png is text/plain"),
        (File(path=__file__, lines=(5, 3)), "lines"),
        (File(path=__file__, lines=(0, 3)), "lines"),
        (File(path="/dev/null"), "neither a file nor a folder"),
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


def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, line = tmp_path / "huge.png", tmp_path / "line.txt"
    image.write_bytes(PNG)
    os.truncate(image, 10**10)  # a hole, no blocks
    with pytest.raises(UsageError, match="10,000,000,000 bytes of image/png are too many"):
        media_url(image, "image/png")
    monkeypatch.setattr(files, "MAX_COUNTED_BYTES", 200_000)
    line.write_text("w" * 300_000, "utf-8")
    with pytest.raises(UsageError, match="no text to read"):
        file_text(line)
    line.write_text("word\n" * 100_000, "utf-8")
    assert "(Lines 1 to 2000, more follow; go on at line 2001)" in file_text(line)
    assert "\n99999: word\n100000: word\n\n(" in file_text(line, start=99_999)


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
