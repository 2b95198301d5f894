"""What an import brought in, what it left out, and what is odd about it."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ImportReport", "ImportedSession", "Oddity", "Skipped"]


class Oddity(msgspec.Struct, frozen=True, kw_only=True):
    """Something odd in a session that came in as it is."""

    code: str
    detail: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A path from which nothing came in."""

    path: str
    reason: str


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and sums of one session, as recorded."""

    id: str
    messages: int
    user_messages: int
    parts: int
    tools: dict[str, int]
    """Tool parts by state: completed, error, running, pending."""
    step_finishes: int
    tokens: dict[str, int]
    """Sums over the step-finishes, by kind."""
    cost_recorded_usd: float
    compactions: int
    """Successful ones."""
    view_messages: int
    """Messages that the next model call may see."""
    warnings: tuple[Oddity, ...] = ()
    title: str = ""
    change: str = "new"
    """new, grown, unchanged, or older: from before what is stored, which was kept."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `load`."""

    sessions: tuple[ImportedSession, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: sessions with counts and warnings, and what was skipped."""
        shown = msgspec.to_builtins(self)
        for session in shown["sessions"]:
            del session["title"], session["change"]
        found: dict[str, Any] = shown
        return found

    def __str__(self) -> str:
        """Return a few lines for people."""
        lines = []
        for one in self.sessions:
            tokens = sum(one.tokens.values())
            lines.append(
                f"{one.change}: {one.title or '(no title)'} ({one.id})\n"
                f"  {one.messages} messages ({one.user_messages} by the user), {one.parts} parts, "
                f"{one.step_finishes} step-finishes, {tokens:,} tokens, "
                f"{one.compactions} compactions, {one.view_messages} messages in view"
            )
            lines += [f"  note {each.code}: {each.detail}" for each in one.warnings]
        lines += [f"skipped: {one.reason}" for one in self.skipped]
        return "\n".join(lines) or "nothing to import"

    def __repr__(self) -> str:
        """Return the same lines."""
        return str(self)
