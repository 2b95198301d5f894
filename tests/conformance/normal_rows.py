"""The normal form of rows: what is left of sessions, messages and parts when they are compared.

Left out are ids, clocks, paths of the machine, hashes of snapshots and patches, response headers
and what a session's own version says; links between messages and sessions become places. What
remains is what a person or a model can see, and what was used and paid.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forge_nb.messages.message import UserMessage
from forge_nb.messages.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolCompleted,
    ToolFailed,
    ToolPart,
    ToolPending,
    ToolRunning,
)
from forge_nb.titles import is_untitled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge_nb.messages.message import (
        AssistantMessage,
        Message,
        MessageWithParts,
        SessionInfo,
    )
    from forge_nb.messages.parts import ModelRef, Part
    from forge_nb.messages.usage import TokenUsage
    from tests.conformance.recording import SessionRows

__all__ = ["anonymous", "normal_rows", "without_paths"]

_PATH = re.compile(r"(?:/[\w.-]+)+/([\w.-]+)")
_CHILD = re.compile(r"ses_[0-9A-Za-z]+")
_PRICE_DIGITS = 9  # US dollars; the sums of floats differ beyond


def normal_rows(sessions: Sequence[SessionRows]) -> list[dict[str, Any]]:
    """Return sessions in normal form, in their order."""
    places = {session.info.id: f"session {n}" for n, session in enumerate(sessions)}
    return [
        {
            **_session(session.info, places),
            "tokens": _tokens(session.tokens),
            "cost": _money(session.cost_usd),
            "messages": _messages(session.messages, places),
        }
        for session in sessions
    ]


def _session(info: SessionInfo, places: Mapping[str, str]) -> dict[str, Any]:
    return {
        "parent": places.get(info.parent_id or ""),
        "title": None if is_untitled(info) else info.title,
        "permission": info.permission or [],
        "model": None if info.model is None else info.model.id,
        "agent": info.agent,
    }


def _messages(
    messages: Sequence[MessageWithParts], sessions: Mapping[str, str]
) -> list[dict[str, Any]]:
    places = {item.message.id: n for n, item in enumerate(messages)}
    return [
        {
            **_message(item.message, places),
            "parts": [_part(part, places, sessions) for part in item.parts],
        }
        for item in messages
    ]


def _message(message: Message, places: Mapping[str, int]) -> dict[str, Any]:
    if isinstance(message, UserMessage):
        return {
            "role": "user",
            "agent": message.agent,
            "model": _model(message.model),
            "system": message.system,
            "tools": message.tools,
            "format": (message.format or {}).get("schema"),
        }
    return {
        "role": "assistant",
        "answers": places.get(message.parent_id or ""),
        "agent": message.agent,
        "mode": message.mode,
        "model": f"{message.provider_id}/{message.model_id}",
        "variant": message.variant,
        "has_path": message.path is not None,
        "summary": message.is_summary,
        "finish": message.finish,
        "error": _error(message),
        "completed": message.time.completed is not None,
        "tokens": _tokens(message.tokens),
        "total": message.tokens.total,
        "cost": _money(message.cost),
        "structured": message.structured,
    }


def _model(model: ModelRef | None) -> str | None:
    return None if model is None else f"{model.provider_id}/{model.model_id}"


def _error(message: AssistantMessage) -> dict[str, Any] | None:
    error = message.error
    if error is None:
        return None
    return {
        "name": error.name,
        "text": error.data.message,
        "status": error.data.status_code,
        "may_retry": error.data.is_retryable,
        "body": error.data.response_body,
    }


def _tokens(tokens: TokenUsage) -> list[int]:
    return [kind or 0 for kind in tokens.kinds]


def _money(cost: float | None) -> float:
    return round(cost or 0.0, _PRICE_DIGITS)


def _part(part: Part, places: Mapping[str, int], sessions: Mapping[str, str]) -> dict[str, Any]:
    match part:
        case TextPart():
            return {
                "kind": "text",
                "text": anonymous(part.text, sessions),
                "synthetic": bool(part.synthetic),
                "ignored": bool(part.ignored),
                "timed": part.time is not None,
                "closed": part.time is None or part.time.end is not None,
                "metadata": part.metadata,
            }
        case ReasoningPart():
            closed = part.time is not None and part.time.end is not None
            said = {"text": part.text, "closed": closed, "metadata": part.metadata}
            return {"kind": "reasoning", **said}
        case ToolPart():
            facts = _state(part, sessions)
            return {"kind": "tool", "tool": part.tool, "metadata": part.metadata, **facts}
        case CompactionPart():
            return {
                "kind": "compaction",
                "auto": part.auto,
                "overflow": bool(part.overflow),
                "tail": places.get(part.tail_start_id or ""),
            }
        case _:
            return _plain_part(part)


def _plain_part(part: Part) -> dict[str, Any]:
    match part:
        case StepFinishPart():
            return {
                "kind": "step-finish",
                "reason": part.reason,
                "tokens": _tokens(part.tokens),
                "total": part.tokens.total,
                "cost": _money(part.cost),
            }
        case FilePart():
            return {"kind": "file", **_file(part.mime, part.filename, part.url, part.source)}
        case AgentPart():
            return {"kind": "agent", "name": part.name, "source": without_paths(part.source)}
        case SubtaskPart():
            told = {"prompt": part.prompt, "description": part.description, "agent": part.agent}
            return {"kind": "subtask", **told, "command": part.command}
        case PatchPart():
            return {"kind": "patch", "files": sorted(map(_last_name, part.files))}
        case StepStartPart():
            return {"kind": "step-start"}
        case _:
            return {"kind": "unknown"}


def _file(mime: str, filename: str | None, url: str, source: Any) -> dict[str, Any]:
    place = url if url.startswith("data:") else _last_name(url.partition("?")[0])
    return {"mime": mime, "filename": filename, "url": place, "source": without_paths(source)}


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _state(part: ToolPart, sessions: Mapping[str, str]) -> dict[str, Any]:
    state = part.state
    facts: dict[str, Any] = {"status": part.status, "input": without_paths(state.input)}
    match state:
        case ToolCompleted():
            facts["output"] = anonymous(state.output, sessions)
            facts["title"] = without_paths(state.title)
            facts["cleared"] = state.time.compacted is not None
            facts["attachments"] = [
                _file(one["mime"], one.get("filename"), one["url"], one.get("source"))
                for one in state.attachments or []
            ]
            facts["told"] = _told(state.metadata, sessions)
        case ToolFailed():
            facts["error"] = anonymous(state.error, sessions)
            facts["told"] = _told(state.metadata, sessions)
        case ToolRunning():
            facts["title"] = without_paths(state.title)
            facts["told"] = _told(state.metadata, sessions)
        case ToolPending():
            pass
    return facts


def _told(metadata: Mapping[str, Any] | None, sessions: Mapping[str, str]) -> Any:
    """Return what a tool said of itself, ids of sessions as places; nothing is as empty."""
    return _anonymous_tree(without_paths(dict(metadata or {})), sessions)


def _anonymous_tree(value: Any, sessions: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return anonymous(value, sessions)
    if isinstance(value, dict):
        return {key: _anonymous_tree(one, sessions) for key, one in value.items()}
    if isinstance(value, list):
        return [_anonymous_tree(one, sessions) for one in value]
    return value


def anonymous(text: str, sessions: Mapping[str, str]) -> str:
    """Return a text without paths and with ids of sessions as places."""
    return _CHILD.sub(lambda found: sessions.get(found.group(), "a session"), without_paths(text))


def without_paths(value: Any) -> Any:
    """Return a value with every absolute path cut to its last name; recordings hide the rest."""
    if isinstance(value, str):
        return _PATH.sub(r"/\1", value)
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    return value
