"""Markdown of a model's text as a tree of plain values; no HTML comes in or goes out.

The tree is what crosses to the browser, which builds elements from it, and what the static
transcript is rendered from. Only the tags below exist, only http, https and mailto links are kept,
images become their alternative text. A model can therefore not put markup into a page.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_CHARS", "TAGS", "Node", "safe_href", "to_nodes"]

MAX_CHARS = 40_000
"""Longer texts are shown as they are: parsing them would hold up the loop for too long."""

Node = str | list[Any]
"""A text, or ``[tag, children]``; a link is ``["a", children, href]``, a code block
``["pre", [text], language]``."""

TAGS = {
    "paragraph": "p",
    "bullet_list": "ul",
    "ordered_list": "ol",
    "list_item": "li",
    "blockquote": "blockquote",
    "hr": "hr",
    "table": "table",
    "thead": "thead",
    "tbody": "tbody",
    "tr": "tr",
    "th": "th",
    "td": "td",
    "strong": "strong",
    "em": "em",
    "s": "s",
    "hardbreak": "br",
    "softbreak": "br",
}
"""Kind in markdown-it's tree → tag; headings, links and code have branches of their own."""

LINK_SCHEMES = frozenset({"http", "https", "mailto"})
TOP_HEADING = 4  # a transcript stands inside a page with headings of its own
LAST_HEADING = 6


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def to_nodes(text: str) -> list[Node] | None:
    """Return the tree of a Markdown text, or None when it is too long to be parsed.

    Examples
    --------
    >>> to_nodes("see **this** <b>")
    [['p', ['see ', ['strong', ['this']], ' <b>']]]
    >>> to_nodes("[x](javascript:alert(1))")
    [['p', ['[x](javascript:alert(1))']]]
    """
    if len(text) > MAX_CHARS:
        return None
    tree = SyntaxTreeNode(_parser().parse(text))
    return _nodes(tree.children)


def safe_href(href: str) -> str | None:
    """Return a link's target when its scheme is one of http, https and mailto."""
    try:
        scheme = urlsplit(href.strip()).scheme.lower()
    except ValueError:
        return None
    return href.strip() if scheme in LINK_SCHEMES else None


def _nodes(children: Iterable[SyntaxTreeNode]) -> list[Node]:
    nodes: list[Node] = []
    for child in children:
        for node in _node(child):
            if isinstance(node, str) and nodes and isinstance(nodes[-1], str):
                nodes[-1] += node
            elif node != "":
                nodes.append(node)
    return nodes


def _node(node: SyntaxTreeNode) -> list[Node]:
    """Return one node of the parser's tree as ours; several when it has no tag of its own."""
    made: list[Node]
    match node.type:
        case "text" | "text_special":
            made = [node.content]
        case "image":
            made = [node.content or "image"]
        case "code_inline":
            made = [["code", [node.content]]]
        case "fence" | "code_block":
            language = (node.info or "").split()
            made = [["pre", [node.content], language[0][:20] if language else ""]]
        case "heading":
            level = min(int(node.tag[1:]) + TOP_HEADING - 1, LAST_HEADING)
            made = [[f"h{level}", _nodes(node.children)]]
        case "link":
            href = safe_href(str(node.attrs.get("href", "")))
            inner = _nodes(node.children)
            made = inner if href is None else [["a", inner, href]]
        case kind:
            inner = _nodes(node.children)
            made = inner if node.hidden or kind not in TAGS else [[TAGS[kind], inner]]
    return made
