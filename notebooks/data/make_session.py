"""Make the session of the first notebook: `parser-fix.json`, in the shape of `opencode export`.

`story.toml` tells what was said and done; this module works out the rest, so that every number can
be traced to the text it stands for:

- what read, grep, glob and edit answer comes from the project's files as they stand at that moment;
- a call's context is `OVERHEAD_TOKENS` for system prompt and tools, plus one token for each
  `CHARS_PER_TOKEN` characters of the view that the model is sent (`sent_texts`);
- a call reads from the cache what the call before it had put there, as long as that is still the
  beginning of what is sent and less than an hour old; otherwise it writes all of it anew;
- an automatic compaction comes after the first call whose total reaches `USABLE_TOKENS`.

Nothing here reads a clock or the network, so the result is the same everywhere.
`python make_session.py` writes the file; a test holds it against `build_session()`.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
import random
import re
import string
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Model = tuple[str, str]

STORY = Path(__file__).with_name("story.toml")
EXPORT = Path(__file__).with_name("parser-fix.json")

START = datetime(2026, 10, 5, 15, 50, tzinfo=UTC)
SEED = 20261005
VERSION = "1.18.30"
ROOT = "/home/ada/almanac"
TITLE = "Two-digit years ignore today in parse_date"

MODEL: Model = ("anthropic", "claude-sonnet-4-5")
PRICES_USD_PER_MILLION = {MODEL: {"input": "3", "output": "15", "read": "0.3", "write": "3.75"}}
"""A model that is not in here has no known price; its cost is recorded as 0, as opencode does."""

WINDOW_TOKENS = 32_000  # the limits that the user set in opencode.json
OUTPUT_LIMIT_TOKENS = 8_000
USABLE_TOKENS = WINDOW_TOKENS - OUTPUT_LIMIT_TOKENS
OVERHEAD_TOKENS = 2_800
SUMMARY_OVERHEAD_TOKENS = 700
CHARS_PER_TOKEN = 3.6
SUMMARY_TOOL_CHARS = 2_000  # how much of a tool's output the summariser is shown
CACHE_LIFE_MS = 3_600_000

UNDONE_TOKENS = {"input": 6, "output": 214, "reasoning": 0, "read": 4_870, "write": 402}
"""A call that the session's roll-up counts and no message holds. Its answer was undone, which took
it out of the roll-up; then a title was saved with the sums as they had been read before that."""

CONTINUE = (
    "Continue if you have next steps, or stop and ask for clarification if you are unsure how to "
    "proceed."
)
COMPACTION_ASKED = "What did we do so far?"
SUBTASK_ASKED = "The following tool was executed by the user"
CLEARED = "[Old tool result content cleared]"
INTERRUPTED = "[Tool execution was interrupted]"
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase


# -------------------------------------------------------------------------------- ids and time


@dataclass
class Mint:
    """The clock, and all that is drawn from it: ids, call ids, pauses."""

    now_ms: int
    random: random.Random
    last_ms: int = 0
    counter: int = 0

    def wait(self, ms: float) -> int:
        """Let time pass, a little more or less than asked, and return the new time."""
        self.now_ms += max(1, round(ms * self.random.uniform(0.9, 1.1)))
        return self.now_ms

    def letters(self, count: int) -> str:
        """Return so many random base-62 characters."""
        return "".join(self.random.choices(BASE62, k=count))

    def id(self, prefix: str, *, newest_first: bool = False) -> str:
        """Return an id: 48 bits of time and counter in hex, then 14 random characters."""
        self.counter = self.counter + 1 if self.now_ms == self.last_ms else 1
        self.last_ms = self.now_ms
        value = self.now_ms * 4096 + self.counter
        bits = (~value if newest_first else value) & (2**48 - 1)
        return f"{prefix}_{bits:012x}{self.letters(14)}"


# ------------------------------------------------------------------------------------ the project


@dataclass
class Workspace:
    """The project's files, and the tools that look at them. Each returns a tool state's fields."""

    files: dict[str, str]

    def snapshot(self) -> str:
        """Return a hash that stands for all files as they are now."""
        return digest(json.dumps(self.files, sort_keys=True))

    def read(self, call: Json) -> Json:
        """Return a file with its lines numbered."""
        path, text = call["path"], self.files[call["path"]]
        lines = text.splitlines()
        output = show_file(path, lines)
        metadata = {"preview": "\n".join(lines[:20]), "truncated": False, "loaded": []}
        return completed({"filePath": f"{ROOT}/{path}"}, output, path, metadata)

    def grep(self, call: Json) -> Json:
        """Return the lines that match, file by file."""
        include, pattern = call["include"], re.compile(call["pattern"])
        found: dict[str, list[str]] = {}
        for path, text in sorted(self.files.items()):
            for number, line in enumerate(text.splitlines(), 1):
                if fnmatch.fnmatch(path.rsplit("/", 1)[-1], include) and pattern.search(line):
                    found.setdefault(path, []).append(f"  Line {number}: {line}")
        count = sum(map(len, found.values()))
        blocks = ["\n".join([f"{ROOT}/{path}:", *lines]) for path, lines in found.items()]
        output = "\n\n".join([f"Found {count} matches", *blocks])
        given = {"pattern": call["pattern"], "include": include}
        return completed(given, output, call["pattern"], {"matches": count, "truncated": False})

    def glob(self, call: Json) -> Json:
        """Return the paths that match."""
        found = [f"{ROOT}/{path}" for path in sorted(fnmatch.filter(self.files, call["pattern"]))]
        metadata = {"count": len(found), "truncated": False}
        return completed({"pattern": call["pattern"]}, "\n".join(found), "", metadata)

    def edit(self, call: Json) -> Json:
        """Replace a text that occurs once; when it does not occur, fail and change nothing."""
        path, before = call["path"], self.files[call["path"]]
        given = {"filePath": f"{ROOT}/{path}", "oldString": call["old"], "newString": call["new"]}
        if before.count(call["old"]) != 1:
            error = "The old text does not occur in the file; copy it with its white space."
            return {"status": "error", "input": given, "error": error}
        self.files[path] = before.replace(call["old"], call["new"])
        change = difference(path, before, self.files[path])
        counts = {key: change[key] for key in ("additions", "deletions")}
        metadata = {
            "diagnostics": {},
            "diff": change["patch"],
            "filediff": {"file": f"{ROOT}/{path}", **counts},
            "truncated": False,
        }
        return completed(given, "The edit was applied.", path, metadata)


def digest(text: str) -> str:
    """Return 40 hex digits, as git names a tree."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def show_file(path: str, lines: list[str]) -> str:
    """Return a file as the read tool shows it."""
    numbered = "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))
    end = f"(End of file - total {len(lines)} lines)"
    head = f"<path>{ROOT}/{path}</path>\n<type>file</type>"
    return f"{head}\n<content>\n{numbered}\n\n{end}\n</content>"


def difference(path: str, before: str, after: str) -> Json:
    """Return a change of one file as a patch with its counts."""
    pair = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    lines = list(difflib.unified_diff(*pair, f"{path}\t", f"{path}\t"))
    return {
        "file": path,
        "patch": "".join([f"Index: {path}\n{'=' * 67}\n", *lines]),
        "additions": sum(line.startswith("+") for line in lines[2:]),
        "deletions": sum(line.startswith("-") for line in lines[2:]),
        "status": "modified",
    }


def completed(given: Json, output: str, title: str, metadata: Json) -> Json:
    """Return the state of a tool that came back."""
    state = {"status": "completed", "input": given, "output": output}
    return {**state, "metadata": metadata, "title": title}


def run_bash(call: Json) -> Json:
    """Return the state of a command, still running when the story gives no exit code."""
    given = {"command": call["command"], "description": call["description"]}
    output = call["output"]
    if "exit" not in call:
        return {"metadata": {"output": output}, "status": "running", "input": given}
    metadata = {"output": output, "exit": call["exit"], "truncated": False}
    return completed(given, output, call["command"], metadata)


def ask_user(call: Json) -> Json:
    """Return the state of a question and its answer."""
    options = [{"label": label, "description": told} for label, told in call["options"]]
    asked = {"question": call["question"], "header": call["header"], "options": options}
    output = f'The user answered: "{call["question"]}"="{call["answer"]}".'
    metadata = {"answers": [[call["answer"]]], "truncated": False}
    return completed({"questions": [asked]}, output, "Asked 1 question", metadata)


def run_task(call: Json, parent: str, mint: Mint, model: Model) -> Json:
    """Return the state of delegated work; the child session it names is not in the export."""
    child = mint.id("ses", newest_first=True)
    output = f'<task id="{child}" state="completed">\n<task_result>\n{call["result"]}\n'
    metadata = {
        "parentSessionId": parent,
        "sessionId": child,
        "model": {"modelID": model[1], "providerID": model[0]},
        "truncated": False,
    }
    given = {key: call[key] for key in ("description", "prompt")}
    given["subagent_type"] = call["agent"]
    return completed(given, f"{output}</task_result>\n</task>", call["description"], metadata)


# --------------------------------------------------------------------------- what the model is sent


def filter_compacted(messages: list[Json]) -> list[Json]:
    """Return the messages of the next view: back to the last good boundary, its tail behind it."""
    done = {m["info"]["parentID"] for m in messages if is_summary(m)}
    requests = [i for i, m in enumerate(messages) if m["info"]["id"] in done and marker(m)]
    if not requests:
        return messages
    start = requests[-1]
    tail = (marker(messages[start]) or {}).get("tail_start_id")
    if tail is None:
        return messages[start:]
    first = next(i for i, m in enumerate(messages) if m["info"]["id"] == tail)
    return messages[start : start + 2] + messages[first:start] + messages[start + 2 :]


def is_summary(message: Json) -> bool:
    """Return whether a message is a summary that ended well."""
    info = message["info"]
    return "summary" in info and info["role"] == "assistant" and "finish" in info


def marker(message: Json) -> Json | None:
    """Return the compaction part of a message."""
    return next((part for part in message["parts"] if part["type"] == "compaction"), None)


def sent_texts(message: Json) -> list[str]:
    """Return what the model reads of a message, part by part."""
    return [text for part in message["parts"] for text in part_texts(part)]


def part_texts(part: Json) -> list[str]:
    """Return what the model reads of a part: nothing of a file, a step or a patch."""
    match part["type"]:
        case "text" | "reasoning":
            return [part["text"]]
        case "compaction":
            return [COMPACTION_ASKED]
        case "subtask":
            return [SUBTASK_ASKED]
        case "tool":
            return [part["tool"], compact(part["state"]["input"]), tool_result(part["state"])]
        case _:
            return []


def tool_result(state: Json) -> str:
    """Return what the model reads as the answer of a tool."""
    if state["status"] == "running":
        return INTERRUPTED
    if "compacted" in state["time"]:
        return CLEARED
    text: str = state["error"] if state["status"] == "error" else state["output"]
    return text


def compact(value: Json) -> str:
    """Return JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tokens_of(texts: list[str]) -> int:
    """Return how many tokens these texts weigh."""
    return round(sum(map(len, texts)) / CHARS_PER_TOKEN)


def summary_input(view: list[Json], tail: str | None) -> list[str]:
    """Return what the summariser reads: the last summary, and the talk since, outputs cut."""
    ids = [message["info"]["id"] for message in view]
    head = view[: ids.index(tail)] if tail else view
    texts = [text for message in head for text in sent_texts(message)]
    return [text[:SUMMARY_TOOL_CHARS] for text in texts]


# ------------------------------------------------------------------------------------------- usage


@dataclass
class Cache:
    """What a provider still holds of the last call's beginning."""

    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    used_ms: int = 0

    def split(self, texts: list[str], context: int, small: int, now_ms: int) -> Json:
        """Return a call's input by kind, and remember what it leaves behind."""
        is_kept = texts[: len(self.texts)] == self.texts and now_ms - self.used_ms < CACHE_LIFE_MS
        read = self.tokens if is_kept else 0
        self.texts, self.tokens, self.used_ms = texts, context - small, now_ms
        return {"input": small, "read": read, "write": context - small - read}


def price(tokens: Json, model: Model) -> Decimal:
    """Return what a call cost in USD; 0 when nobody knows."""
    prices = PRICES_USD_PER_MILLION.get(model)
    if prices is None:
        return Decimal(0)
    billed = {**tokens, "output": tokens["output"] + tokens["reasoning"]}
    usd = sum((Decimal(prices[kind]) * billed[kind] for kind in prices), start=Decimal(0))
    return usd / 1_000_000


def usage_json(tokens: Json) -> Json:
    """Return five kinds of tokens and their total as the export writes them."""
    cache = {"write": tokens["write"], "read": tokens["read"]}
    kinds = {kind: tokens[kind] for kind in ("input", "output", "reasoning")}
    return {"total": sum(tokens.values()), **kinds, "cache": cache}


def no_usage() -> Json:
    """Return the zeros of a call that reported nothing."""
    return {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}


# ------------------------------------------------------------------------------------ the recorder
