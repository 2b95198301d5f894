from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.widgets.markdown import MAX_CHARS, TAGS, safe_href, to_nodes

ALLOWED = {*TAGS.values(), "code", "pre", "a", "h4", "h5", "h6"}
MARKDOWN = st.text(
    st.one_of(st.sampled_from("*_`#->[]()<!|\n ~:/ab1."), st.characters(codec="utf-8")),
    max_size=120,
)


def tags(nodes: list[Any] | None) -> list[list[Any]]:
    found: list[list[Any]] = []
    for node in nodes or []:
        if not isinstance(node, str):
            found += [node, *tags(node[1])]
    return found


@given(MARKDOWN)
def test_a_tree_has_only_tags_of_the_list_and_links_of_three_schemes(text: str) -> None:
    for node in tags(to_nodes(text)):
        assert node[0] in ALLOWED
        if node[0] == "a":
            assert safe_href(node[2]) == node[2]


def test_html_is_text() -> None:
    assert to_nodes("<script>x</script>\n\n<b>y</b>") == [
        ["p", ["<script>x</script>"]],
        ["p", ["<b>y</b>"]],
    ]


@pytest.mark.parametrize(
    "target",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,x",
        "vbscript:x",
        "//host/x",
        "x.md",
    ],
)
def test_other_links_are_dropped(target: str) -> None:
    assert [node for node in tags(to_nodes(f"[x]({target})")) if node[0] == "a"] == []


def test_http_and_mail_links_are_kept() -> None:
    assert to_nodes("[x](https://a.b/c) <mailto:me@a.b>") == [
        ["p", [["a", ["x"], "https://a.b/c"], " ", ["a", ["mailto:me@a.b"], "mailto:me@a.b"]]]
    ]


def test_images_are_their_text() -> None:
    assert to_nodes("![a cat](https://a.b/track.png)") == [["p", ["a cat"]]]


def test_headings_are_small_and_code_keeps_its_language() -> None:
    assert to_nodes("# A\n\n```py\nx < 1\n```") == [["h4", ["A"]], ["pre", ["x < 1\n"], "py"]]


def test_a_very_long_text_is_not_parsed() -> None:
    assert to_nodes("x" * (MAX_CHARS + 1)) is None
