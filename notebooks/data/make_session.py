"""Make the session of the first notebook: `parser-fix.json`, in the shape of `opencode export`.

`story.toml` tells what was said and done; this module works out the rest, so that every number can
be traced to the text it stands for:

- what read, grep and edit answer comes from the project's files as they stand at that moment;
- a call's context is `OVERHEAD_TOKENS` for system prompt and tools, plus one token for each
  `CHARS_PER_TOKEN` characters of what the model is sent (`sent_texts` of `filter_compacted`);
- a call reads from the cache what the call before it had left there, if that is still the
  beginning of what is sent and less than an hour old; otherwise it writes all of it anew;
- an automatic compaction follows the call whose total reaches `USABLE_TOKENS`.

No clock and no network: the result is the same everywhere. `python make_session.py` writes the
file, and a test holds the file against `build_session()`.
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
ROOT = "/home/ada/almanac"

MODEL: Model = ("anthropic", "claude-sonnet-4-5")
PRICES_USD_PER_MILLION = {MODEL: {"input": "3", "output": "15", "read": "0.3", "write": "3.75"}}
"""A model that is not in here has no known price; opencode records its cost as 0."""

WINDOW_TOKENS = 32_000  # as the user's opencode.json limits it
OUTPUT_LIMIT_TOKENS = 8_000
USABLE_TOKENS = WINDOW_TOKENS - OUTPUT_LIMIT_TOKENS
OVERHEAD_TOKENS = 2_800
SUMMARY_OVERHEAD_TOKENS = 700
SUMMARY_TOOL_CHARS = 2_000  # what the summariser is shown of a tool's output
CHARS_PER_TOKEN = 3.6
CACHE_LIFE_MS = 3_600_000

UNDONE_TOKENS = {"input": 6, "output": 214, "reasoning": 0, "read": 4_870, "write": 402}
"""A call that the session's roll-up counts and no message holds. Its answer was undone, which took
it out of the sums; then the session was saved with the sums as they had been read before that."""
NO_TOKENS = dict.fromkeys(UNDONE_TOKENS, 0)

CONTINUE = {
    "type": "text",
    "metadata": {"compaction_continue": True},
    "synthetic": True,
    "text": "Continue if you have next steps, or stop and ask for clarification if you are unsure "
    "how to proceed.",
}
"""What an automatic compaction puts into the user's mouth."""
COMPACTION_ASKED = "What did we do so far?"
SUBTASK_ASKED = "The following tool was executed by the user"
CLEARED = "[Old tool result content cleared]"
INTERRUPTED = "[Tool execution was interrupted]"
ABORTED = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase


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


def run_tool(files: dict[str, str], call: Json) -> Json:
    """Return what a tool call came to; `edit` changes the files."""
    match call["tool"]:
        case "read":
            return read(files, call["path"])
        case "grep":
            return grep(files, call["pattern"], call["include"])
        case "edit":
            return edit(files, call["path"], call["old"], call["new"])
        case "bash":
            return bash(call)
        case _:
            output = call["output"].strip()
            metadata = {**call["metadata"], "truncated": False}
            return completed(call["input"], output, call["title"], metadata)


def read(files: dict[str, str], path: str) -> Json:
    """Show a file with its lines numbered."""
    preview = "\n".join(files[path].splitlines()[:20])
    metadata = {"preview": preview, "truncated": False, "loaded": []}
    return completed({"filePath": f"{ROOT}/{path}"}, show_file(files, path), path, metadata)


def show_file(files: dict[str, str], path: str) -> str:
    """Return a file as the read tool shows it."""
    lines = [f"{number}: {line}" for number, line in enumerate(files[path].splitlines(), 1)]
    head = f"<path>{ROOT}/{path}</path>\n<type>file</type>\n<content>"
    return "\n".join([head, *lines, "", f"(End of file - total {len(lines)} lines)\n</content>"])


def grep(files: dict[str, str], pattern: str, include: str) -> Json:
    """Show the lines that match, file by file."""
    blocks, count = [], 0
    for path in sorted(fnmatch.filter(files, include)):
        numbered = enumerate(files[path].splitlines(), 1)
        found = [f"  Line {n}: {line}" for n, line in numbered if re.search(pattern, line)]
        blocks += ["\n".join([f"{ROOT}/{path}:", *found])] if found else []
        count += len(found)
    output = "\n\n".join([f"Found {count} matches", *blocks])
    metadata = {"matches": count, "truncated": False}
    return completed({"pattern": pattern, "include": include}, output, pattern, metadata)


def edit(files: dict[str, str], path: str, old: str, new: str) -> Json:
    """Replace a text that occurs once; otherwise fail and change nothing."""
    before = files[path]
    given = {"filePath": f"{ROOT}/{path}", "oldString": old, "newString": new}
    if before.count(old) != 1:
        error = "The old text does not occur in the file. Copy it as it stands, blanks included."
        return {"status": "error", "input": given, "error": error}
    files[path] = before.replace(old, new)
    patch = difference(path, before, files[path])["patch"]
    metadata = {"diagnostics": {}, "diff": patch, "truncated": False}
    return completed(given, "The edit was applied.", path, metadata)


def bash(call: Json) -> Json:
    """Show a command's output; it is still running when the story gives no exit code."""
    given = {"command": call["command"], "description": call["description"]}
    output = call["output"]
    if "exit" not in call:
        return {"metadata": {"output": output}, "status": "running", "input": given}
    metadata = {"output": output, "exit": call["exit"], "truncated": False}
    return completed(given, output, call["command"], metadata)


def completed(given: Json, output: str, title: str, metadata: Json) -> Json:
    """Return the state of a tool that came back."""
    state = {"status": "completed", "input": given, "output": output}
    return {**state, "metadata": metadata, "title": title}


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


def digest(value: object) -> str:
    """Return 40 hex digits, as git names a commit or a tree."""
    return hashlib.sha1(json.dumps(value).encode(), usedforsecurity=False).hexdigest()


def filter_compacted(messages: list[Json]) -> list[Json]:
    """Return the messages of the next view: back to the last good boundary, its tail behind it."""
    infos = [item["info"] for item in messages]
    ids = [info["id"] for info in infos]
    done = {i["parentID"] for i in infos if i.get("summary") is True and "finish" in i}
    requests = [at for at, item in enumerate(messages) if ids[at] in done and marker(item)]
    if not requests:
        return messages
    start = requests[-1]
    tail = marker(messages[start]).get("tail_start_id")
    kept = messages[ids.index(tail) : start] if tail else []
    return messages[start : start + 2] + kept + messages[start + 2 :]


def marker(item: Json) -> Json:
    """Return the compaction part of a message, empty when it has none."""
    return next((part for part in item["parts"] if part["type"] == "compaction"), {})


def sent_texts(messages: list[Json], tool_chars: int | None = None) -> list[str]:
    """Return what the model reads of these messages, part by part, tool outputs cut if asked."""
    parts = [part for item in messages for part in item["parts"]]
    return [text for part in parts for text in part_texts(part, tool_chars)]


def part_texts(part: Json, tool_chars: int | None) -> list[str]:
    """Return what the model reads of a part: nothing of a file, a step or a patch."""
    match part["type"]:
        case "text" | "reasoning":
            return [part["text"]]
        case "compaction":
            return [COMPACTION_ASKED]
        case "subtask":
            return [SUBTASK_ASKED]
        case "tool":
            state = part["state"]
            return [part["tool"], compact_json(state["input"]), tool_result(state)[:tool_chars]]
        case _:
            return []


def tool_result(state: Json) -> str:
    """Return what the model reads as the answer of a tool."""
    if state["status"] == "running":
        return INTERRUPTED
    text: str = state["error"] if state["status"] == "error" else state["output"]
    return CLEARED if "compacted" in state["time"] else text


def compact_json(value: Json) -> str:
    """Return JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def tokens_of(texts: list[str]) -> int:
    """Return how many tokens these texts weigh."""
    return round(sum(map(len, texts)) / CHARS_PER_TOKEN)


@dataclass
class Cache:
    """What the provider still holds of the last call's beginning."""

    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    used_ms: int = 0

    def split(self, texts: list[str], fresh: int, now_ms: int) -> Json:
        """Return a call's input by kind, `fresh` of it beyond the cache, and hold the rest."""
        is_held = texts[: len(self.texts)] == self.texts and now_ms - self.used_ms < CACHE_LIFE_MS
        read = self.tokens if is_held else 0
        self.texts, self.used_ms = texts, now_ms
        self.tokens = OVERHEAD_TOKENS + tokens_of(texts) - fresh
        return {"input": fresh, "read": read, "write": self.tokens - read}


def price(tokens: Json, model: Model) -> Decimal:
    """Return what a call cost in USD; 0 when nobody knows."""
    prices = PRICES_USD_PER_MILLION.get(model, {})
    billed = {**tokens, "output": tokens["output"] + tokens["reasoning"]}
    parts = [Decimal(prices[kind]) * billed[kind] for kind in prices]
    return sum(parts, start=Decimal(0)) / 1_000_000


def usage(tokens: Json) -> Json:
    """Return the five kinds of tokens as the export writes them."""
    kinds = {kind: tokens[kind] for kind in ("input", "output", "reasoning")}
    return {**kinds, "cache": {"write": tokens["write"], "read": tokens["read"]}}


UNDONE_COST_USD = price(UNDONE_TOKENS, MODEL)


@dataclass
class Recorder:
    """Plays the story turn by turn and writes down what an engine would have stored."""

    mint: Mint
    files: dict[str, str]
    session: str
    messages: list[Json] = field(default_factory=list)
    model: Model = MODEL
    cache: Cache = field(default_factory=Cache)
    named: dict[str, Json] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=UNDONE_TOKENS.copy)
    cost: Decimal = UNDONE_COST_USD

    def play(self, turn: Json) -> None:
        """Record one turn: what the user did, and each call of the model that followed."""
        self.mint.wait(60_000 * turn["wait_min"])
        provider, _, name = turn.get("model", "/".join(MODEL)).partition("/")
        self.model = (provider, name)
        before = dict(self.files)
        user = self.begin(turn)
        self.named[turn.get("name", "")] = user
        for step in turn.get("step", []):
            self.step(user, step)
        changed = [path for path in before if before[path] != self.files[path]]
        changes = [difference(path, before[path], self.files[path]) for path in changed]
        user["info"]["summary"]["diffs"] = changes
        for name in turn.get("clear", []):
            self.named[name]["state"]["time"]["compacted"] = self.mint.now_ms

    def begin(self, turn: Json) -> Json:
        """Record what the user did; return the message that the model answers."""
        if "compact" in turn:
            return self.compact(turn)
        if "subtask" in turn:
            return self.delegate(turn["subtask"])
        text = turn["ask"].strip()
        files = [part for path in turn.get("files", []) for part in self.mention(path, text)]
        return self.add_user([{"type": "text", "text": text}, *files, *turn.get("parts", [])])

    def mention(self, path: str, text: str) -> list[Json]:
        """Return the two texts that a mentioned file becomes, and the file itself."""
        given = compact_json({"filePath": f"{ROOT}/{path}"})
        called = f"Called the Read tool with the following input: {given}"
        told = [called, show_file(self.files, path)]
        start = text.index(f"@{path}")
        span = {"value": f"@{path}", "start": start, "end": start + len(path) + 1}
        file: Json = {"type": "file", "mime": "text/plain", "filename": path.rsplit("/", 1)[-1]}
        source = {"text": span, "type": "file", "path": path}
        file |= {"url": f"file://{ROOT}/{path}", "source": source}
        return [*({"type": "text", "synthetic": True, "text": text} for text in told), file]

    def delegate(self, task: Json) -> Json:
        """Record delegated work; its envelope is no call of the model and has no step parts."""
        given = {key: task["input"][key] for key in ("prompt", "description")}
        agent = task["input"]["subagent_type"]
        user = self.add_user([{"type": "subtask", **given, "agent": agent}])
        message = self.add_assistant(user, agent)
        self.call(message, {**task, "tool": "task"})
        self.complete(message, finish="tool-calls")
        return user

    def compact(self, turn: Json) -> Json:
        """Record a compaction; return the message that the next calls answer."""
        view = filter_compacted(self.messages)
        is_auto = turn["compact"] == "auto"
        overflow = {"overflow": False} if is_auto else {}
        request = self.add_user([{"type": "compaction", "auto": is_auto, **overflow}])
        message = self.add_assistant(request, "compaction", summary=True)
        self.start_step(message)
        self.write(message, "text", turn["summary"].strip())
        if turn.get("aborted"):
            self.complete(message, error=ABORTED)
            return request
        head = view
        if "tail_from" in turn:
            tail = self.named[turn["tail_from"]]
            head = view[: view.index(tail)]
            request["parts"][0]["tail_start_id"] = tail["info"]["id"]
        weight = tokens_of(sent_texts(head, SUMMARY_TOOL_CHARS))
        self.finish_step(message, {"input": SUMMARY_OVERHEAD_TOKENS + weight})
        self.complete(message)
        time = {"start": self.mint.now_ms, "end": self.mint.now_ms}
        return self.add_user([{**CONTINUE, "time": time}]) if is_auto else request

    def step(self, user: Json, step: Json) -> None:
        """Record one call of the model with the tools that it called."""
        texts = sent_texts(filter_compacted(self.messages))
        message = self.add_assistant(user)
        before, snapshot = dict(self.files), self.start_step(message)
        for kind in ("reasoning", "text"):
            if kind in step:
                self.write(message, kind, step[kind].strip())
        for call in step.get("tool", []):
            self.call(message, call)
        if step.get("aborted"):  # what was written stays; usage is unknown
            self.complete(message, error=ABORTED)
        if step.get("aborted") or step.get("running"):
            return
        sent = {"input": OVERHEAD_TOKENS + tokens_of(texts)}
        if self.model == MODEL:  # the other one caches nothing
            sent = self.cache.split(texts, self.mint.random.randint(3, 9), self.mint.now_ms)
        self.finish_step(message, sent)
        changed = [f"{ROOT}/{path}" for path in before if before[path] != self.files[path]]
        if changed:
            self.add_part(message, {"type": "patch", "hash": snapshot, "files": changed})
        self.complete(message)

    def start_step(self, message: Json) -> str:
        """Add a step's start; return its snapshot."""
        self.mint.wait(1_100)
        snapshot = digest(self.files)
        self.add_part(message, {"snapshot": snapshot, "type": "step-start"})
        self.mint.wait(300)
        return snapshot

    def write(self, message: Json, kind: str, text: str) -> None:
        """Add a text or a reasoning, written at the speed of a model."""
        part = self.add_part(message, {"type": kind, "text": text})
        part["time"] = {"start": self.mint.now_ms, "end": self.mint.wait(18 * tokens_of([text]))}
        if kind == "reasoning" and self.model == MODEL:
            part["metadata"] = {"anthropic": {"signature": self.mint.letters(48)}}

    def call(self, message: Json, call: Json) -> None:
        """Add a tool call; its part is there from the first word of its input on."""
        prefix = "toolu_" if self.model == MODEL else "call_"
        head = {"type": "tool", "tool": call["tool"], "callID": prefix + self.mint.letters(24)}
        part = self.add_part(message, head)
        part["state"] = state = run_tool(self.files, call)
        start = self.mint.wait(18 * tokens_of([compact_json(state["input"])]))
        end = self.mint.wait(1000 * call.get("seconds", 0.05))
        state["time"] = {"start": start}
        if state["status"] != "running":
            state["time"]["end"] = end
        self.named[call.get("name", "")] = part

    def finish_step(self, message: Json, sent: Json) -> None:
        """Add a step's end: what was sent and written, and its cost."""
        parts = message["parts"]
        thought = tokens_of([part["text"] for part in parts if part["type"] == "reasoning"])
        written = tokens_of([text for part in parts for text in part_texts(part, 0)])
        is_split = self.model != MODEL  # Anthropic counts reasoning as output
        wrote = {"output": written - thought * is_split, "reasoning": thought * is_split}
        tokens = {**NO_TOKENS, **sent, **wrote}
        cost = price(tokens, self.model)
        reason = "tool-calls" if any(part["type"] == "tool" for part in parts) else "stop"
        end = {"tokens": {"total": sum(tokens.values()), **usage(tokens)}, "cost": float(cost)}
        start = {"reason": reason, "snapshot": digest(self.files), "type": "step-finish"}
        self.add_part(message, start | end)
        message["info"] |= end | {"finish": reason}
        self.cost += cost
        self.sums = {kind: self.sums[kind] + tokens[kind] for kind in tokens}

    def complete(self, message: Json, **more: object) -> None:
        """Say when a message was completed, and how."""
        message["info"]["time"]["completed"] = self.mint.wait(60)
        message["info"] |= more

    def add_user(self, parts: list[Json]) -> Json:
        """Add a message of the user's."""
        model = {"providerID": self.model[0], "modelID": self.model[1]}
        info = {"role": "user", "time": {"created": self.mint.now_ms}, "agent": "build"}
        message = self.add_message({**info, "model": model, "summary": {"diffs": []}})
        for part in parts:
            self.add_part(message, part)
        return message

    def add_assistant(self, user: Json, agent: str = "build", **more: bool) -> Json:
        """Add a message of the model's, empty and unfinished."""
        self.mint.wait(40)
        head = {"parentID": user["info"]["id"], "role": "assistant", "mode": agent, "agent": agent}
        zeros = {"path": {"cwd": ROOT, "root": ROOT}, "cost": 0, "tokens": usage(NO_TOKENS)}
        model = {"modelID": self.model[1], "providerID": self.model[0]}
        time = {"created": self.mint.now_ms}
        return self.add_message({**head, **more, **zeros, **model, "time": time})

    def add_message(self, info: Json) -> Json:
        """Add a message with its ids."""
        ids = {"id": self.mint.id("msg"), "sessionID": self.session}
        self.messages.append({"info": {**info, **ids}, "parts": []})
        return self.messages[-1]

    def add_part(self, message: Json, part: Json) -> Json:
        """Add a part with its ids."""
        ids = {"id": self.mint.id("prt"), "sessionID": self.session}
        stored = {**part, **ids, "messageID": message["info"]["id"]}
        message["parts"].append(stored)
        return stored


def build_session() -> Json:
    """Return the whole export."""
    story = tomllib.loads(STORY.read_text("utf-8"))
    mint = Mint(round(START.timestamp() * 1000), random.Random(SEED))  # noqa: S311 - no secrets
    created = mint.now_ms
    recorder = Recorder(mint, story["files"], mint.id("ses", newest_first=True))
    mint.wait(35)
    for turn in story["turn"]:
        recorder.play(turn)
    sums = {"cost": float(recorder.cost), "tokens": usage(recorder.sums)}
    time = {"created": created, "updated": mint.now_ms}
    info = {"id": recorder.session, **story["session"], **sums, "time": time}
    return {"info": info, "messages": recorder.messages}


if __name__ == "__main__":
    text = json.dumps(build_session(), ensure_ascii=False, indent=1)
    EXPORT.write_text(text + "\n", "utf-8")
