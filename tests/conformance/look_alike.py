"""A small recorded run in the files of a real one, for tests of the harness itself.

What happens in it: a question is answered while a second one comes in; the second is answered by
two tool calls that end in the other order, and by words that are cut off: by an abort, or by a kill
of the engine, which is started again and asked a third question.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tests.lookalikes import write_database

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["LookAlike"]

Json = dict[str, Any]

_USED = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
_TOKENS = {"total": 110, "input": 100, "output": 10, "reasoning": 0}
_COST = (100 * 3 + 10 * 15) / 1e6  # by the prices in `_CONFIG`
_NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_CONFIG = {
    "model": "near/m",
    "provider": {
        "near": {
            "npm": "@ai-sdk/openai-compatible",
            "models": {
                "m": {
                    "limit": {"context": 9_000, "output": 1_000},
                    "cost": {"input": 3, "output": 15},
                }
            },
        }
    },
}


class LookAlike:
    """Writes one recording.

    Parameters
    ----------
    mark
        Part of every id.
    root
        Where its files seem to lie.
    start_s
        When it seems to begin.
    is_killed
        Whether the words at the end are cut by a kill, not by an abort.
    """

    def __init__(
        self,
        *,
        mark: str = "x",
        root: str = "/w",
        start_s: float = 1_700_000_000.0,
        is_killed: bool = False,
    ) -> None:
        self.mark, self.root = mark, root
        self._is_killed = is_killed
        self.session = f"ses_{mark}"
        self._now = start_s
        self._messages: dict[str, Json] = {}
        self._parts: dict[str, Json] = {}
        self._events: list[tuple[str, Json]] = []
        self._live: list[Json] = []
        self._calls: list[Json] = []
        self._requests: list[Json] = []
        self._run()

    # --------------------------------------------------------------------------- what happens

    def _run(self) -> None:
        self._publish("server.connected", {})
        self._ask("POST", "/session", {"title": "look"})
        self._event("session.created", {"info": {"id": self.session}})
        self._prompt("1", "one")
        self._answer("2", to="1")
        self._call([_user("one")], _said("Hel", "lo", "!"))
        self._open_text("2", ("Hel", "lo"))
        self._prompt("3", "two")
        self._close_text("2", ("!",), "Hello!")
        self._finish("2", "stop")
        self._answer("4", to="3")
        calls = [
            _tool_chunk(0, "a", self.root),
            _tool_chunk(1, "b", self.root),
            *_end("tool-calls"),
        ]
        view = [_user("one"), {"role": "assistant", "content": "Hello!"}, _user("two")]
        self._call(view, calls)
        self._part("4", "1", {"type": "step-start", "snapshot": f"state {self.mark}"})
        for place, name in enumerate("ab", 2):
            self._tool("4", str(place), name, "pending")
            self._tool("4", str(place), name, "running")
        for place, name in ((3, "b"), (2, "a")):
            self._tool("4", str(place), name, "completed")
        self._finish("4", "tool-calls")
        self._answer("5", to="3")
        results = [
            {"role": "tool", "tool_call_id": f"call_{name}", "content": f"file {name}"}
            for name in "ab"
        ]
        asked = {"role": "assistant", "content": "", "tool_calls": _tool_calls(self.root)}
        self._call([*view, asked, *results], _said("do", "ne"), sent_all=False)
        self._open_text("5", ("do",))
        if self._is_killed:
            self._go_on_after_a_kill([*view, asked, *results])
        else:
            self._abort()

    def _abort(self) -> None:
        self._ask("POST", f"/session/{self.session}/abort", None)
        self._close_text("5", (), "do")
        error = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
        self._message("5", error=error, time={**self._time("5"), "completed": self._ms()})

    def _go_on_after_a_kill(self, view: list[Json]) -> None:
        self._publish("server.connected", {})
        self._prompt("6", "three")
        self._answer("7", to="6")
        self._call([*view, {"role": "assistant", "content": ""}, _user("three")], _said("yes"))
        self._open_text("7", ("yes",))
        self._close_text("7", (), "yes")
        self._finish("7", "stop")

    def _prompt(self, key: str, text: str) -> None:
        body = {
            "model": {"providerID": "near", "modelID": "m"},
            "parts": [{"type": "text", "text": text}],
        }
        self._ask("POST", f"/session/{self.session}/prompt_async", body)
        self._message(
            key,
            role="user",
            time={"created": self._ms()},
            agent="build",
            model={"providerID": "near", "modelID": "m"},
        )
        self._part(key, "1", {"type": "text", "text": text})
        self._event("session.updated", {"info": {"id": self.session}})

    def _answer(self, key: str, *, to: str) -> None:
        self._message(
            key,
            role="assistant",
            parentID=self._id("msg", to),
            mode="build",
            agent="build",
            path={"cwd": self.root, "root": self.root},
            cost=0,
            tokens=_NO_TOKENS,
            modelID="m",
            providerID="near",
            time={"created": self._ms()},
        )

    def _open_text(self, key: str, pieces: Iterable[str]) -> None:
        self._part(key, "1", {"type": "step-start", "snapshot": f"state {self.mark}"})
        self._part(key, "2", {"type": "text", "text": "", "time": {"start": self._ms()}})
        self._say(key, pieces)

    def _say(self, key: str, pieces: Iterable[str]) -> None:
        for piece in pieces:
            facts = {"messageID": self._id("msg", key), "partID": self._id("prt", f"{key}2")}
            self._publish("message.part.delta", {**facts, "field": "text", "delta": piece})

    def _close_text(self, key: str, pieces: Iterable[str], text: str) -> None:
        self._say(key, pieces)
        time = {"start": self._ms(), "end": self._ms()}
        self._part(key, "2", {"type": "text", "text": text, "time": time})

    def _tool(self, key: str, place: str, name: str, status: str) -> None:
        path = f"{self.root}/{name}.txt"
        state: Json = {"status": status, "input": {"path": path}}
        if status == "pending":
            state |= {"input": {}, "raw": ""}
        else:
            state["time"] = {"start": self._ms()}
        if status == "completed":
            state |= {"output": f"file {name}", "title": name, "metadata": {"truncated": False}}
            state["time"]["end"] = self._ms()
        self._part(
            key, place, {"type": "tool", "tool": "read", "callID": f"call_{name}", "state": state}
        )

    def _finish(self, key: str, reason: str) -> None:
        used: Json = {"tokens": {**_TOKENS, "cache": {"read": 0, "write": 0}}, "cost": _COST}
        self._part(key, "9", {"type": "step-finish", "reason": reason, **used})
        self._message(key, finish=reason, **used)
        self._message(key, time={**self._time(key), "completed": self._ms()})

    # --------------------------------------------------------------------------- how it is kept

    def _id(self, prefix: str, key: str) -> str:
        return f"{prefix}_{key}{self.mark}"

    def _ms(self) -> int:
        self._now += 0.01
        return int(self._now * 1000)

    def _time(self, key: str) -> Json:
        time: Json = self._messages[self._id("msg", key)]["time"]
        return time

    def _message(self, key: str, **facts: Any) -> None:
        found = self._messages.get(self._id("msg", key), {})
        info = {**found, "id": self._id("msg", key), "sessionID": self.session, **facts}
        self._messages[info["id"]] = info
        self._event("message.updated", {"info": info})

    def _part(self, key: str, place: str, content: Json) -> None:
        ids = {"messageID": self._id("msg", key), "sessionID": self.session}
        part = {"id": self._id("prt", f"{key}{place}"), **ids, **content}
        self._parts[part["id"]] = part
        self._event("message.part.updated", {"part": part, "time": self._ms()})

    def _event(self, kind: str, data: Json) -> None:
        self._events.append((kind, {"sessionID": self.session, **data}))
        self._publish(kind, data)

    def _publish(self, kind: str, data: Json) -> None:
        properties = {"sessionID": self.session, **data}
        event = {"id": "evt_1", "type": kind, "properties": properties}
        self._live.append({"t": self._ms() / 1000, "src": "/event", "data": event})

    def _ask(self, method: str, path: str, body: Json | None) -> None:
        self._requests.append(
            {"t": self._ms() / 1000, "method": method, "path": path, "req": body, "status": 200}
        )

    def _call(self, messages: list[Json], chunks: list[Json], *, sent_all: bool = True) -> None:
        self._calls.append(
            {
                "t": self._ms() / 1000,
                "session": self.session,
                "purpose": "queue",
                "model": "m",
                "max_tokens": 1_000,
                "tools": ["read"],
                "messages": messages,
                "reply": {"kind": "openai", "chunks": chunks, "delay": 5.0},
                "sent_all": sent_all or None,
            }
        )

    # ----------------------------------------------------------------------------- the files

    def write(self, folder: Path) -> Path:
        """Write the recording's folder and return it."""
        folder.mkdir(parents=True)
        _write_lines(folder / "calls.jsonl.gz", self._calls)
        _write_lines(folder / "events.jsonl.gz", self._live)
        _write_lines(folder / "scenario.jsonl.gz", self._requests)
        (folder / "config.json").write_text(json.dumps(_CONFIG), "utf-8")
        database = write_database(folder / "store.db", [self._export()])
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("create table event (aggregate_id, seq, type, data)")
            connection.executemany(
                "insert into event values (?, ?, ?, ?)",
                [
                    (self.session, seq, f"{kind}.1", json.dumps(data))
                    for seq, (kind, data) in enumerate(self._events)
                ],
            )
            model = json.dumps({"id": "m", "providerID": "near"})
            connection.execute("update session set agent = 'build', model = ?", (model,))
        (folder / "store.db.gz").write_bytes(gzip.compress(database.read_bytes()))
        database.unlink()
        return folder

    def _export(self) -> Json:
        created = next(iter(self._messages.values()))["time"]["created"]
        calls = sum("finish" in message for message in self._messages.values())
        info = {
            "id": self.session,
            "slug": "look",
            "projectID": "global",
            "directory": self.root,
            "title": "look",
            "version": "1.18.34",
            "cost": _COST * calls,
            "tokens": {**_NO_TOKENS, "input": 100 * calls, "output": 10 * calls},
            "time": {"created": created, "updated": created},
        }
        return {"info": info, "messages": list(self._items())}

    def _items(self) -> Iterator[Json]:
        for message_id, message in self._messages.items():
            parts = [part for part in self._parts.values() if part["messageID"] == message_id]
            yield {"info": message, "parts": sorted(parts, key=lambda part: part["id"])}


def _write_lines(path: Path, lines: Iterable[Json]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()))


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    facts = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**facts, "choices": [choice], **more}


def _words(text: str) -> Json:
    return _chunk({"content": text})


def _said(*pieces: str) -> list[Json]:
    return [*map(_words, pieces), *_end("stop")]


def _end(reason: str) -> list[Json]:
    return [_chunk({}, reason.replace("-", "_")), {**_chunk({}), "choices": [], "usage": _USED}]


def _tool_call(name: str, root: str) -> Json:
    given = json.dumps({"path": f"{root}/{name}.txt"})
    return {
        "id": f"call_{name}",
        "type": "function",
        "function": {"name": "read", "arguments": given},
    }


def _tool_calls(root: str) -> list[Json]:
    return [_tool_call(name, root) for name in "ab"]


def _tool_chunk(place: int, name: str, root: str) -> Json:
    return _chunk({"tool_calls": [{"index": place, **_tool_call(name, root)}]})
