"""The named scripts: `tour` for the tutorials, the others for trying one thing each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.errors import UsageError
from forge_nb.messages.usage import ModelLimits
from forge_nb.providers.scripted import Call, Script, Turn, last_question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge_nb.messages.render import ModelMessage

__all__ = ["SCRIPTS", "make_script"]

_FLAKY_EVERY = 3  # the third attempt comes through
_TOUR_STEPS = 5  # model calls that the tour takes for one question


def read_file(path: str) -> str:
    """Return the text of a file of the example project.

    Parameters
    ----------
    path
        Path inside the project.
    """
    if path not in _FILES:
        msg = f"{path!r} is not in the project; it has {sorted(_FILES)}"
        raise FileNotFoundError(msg)
    return _FILES[path]


def run_tests(target: str = "tests") -> str:
    """Run the example project's tests and return the runner's report."""
    rows = "\n".join(f"tests/test_parse.py::test_case_{n:02d} PASSED" for n in range(1, 24))
    return (
        f"collected 24 items in {target}\n{rows}\n"
        "tests/test_parse.py::test_month_names FAILED\n"
        "E   ValueError: '3 März 2026' has no month; known months: jan, feb, mar, apr, may, jun\n"
        "src/almanac/parse.py:41: ValueError\n1 failed, 23 passed in 0.41 s"
    )


def _listing(name: str, lines: int) -> str:
    body = "\n".join(
        f"{n:3d}  {name}_{n} = normalise(token[{n}], locale)  # rule {n} of the {name} table"
        for n in range(1, lines)
    )
    return f"# {name}\n{body}\n"


_FILES = {
    "src/almanac/parse.py": _listing("parse", 42),
    "src/almanac/months.py": _listing("months", 36),
    "tests/test_parse.py": _listing("test_parse", 30),
}


def _tour(step: int, messages: Sequence[ModelMessage]) -> Turn:
    turn, place = divmod(step, _TOUR_STEPS)
    asked = last_question(messages)[:60] or "the question"
    steps = (
        Turn(
            reasoning=f"The question is: {asked}. The failing test names a month, so the month "
            "table is where to look, and the test run says how it fails.",
            text="I read the parser and run its tests.",
            calls=(
                Call("read_file", {"path": "src/almanac/parse.py"}),
                Call("run_tests", {"target": "tests/test_parse.py"}),
            ),
        ),
        Turn(
            text="One test fails: a German month name. I look for the locale's settings.",
            calls=(Call("read_file", {"path": "config/locales.toml"}),),
        ),
        Turn(
            text="There is no such file; the names must be in the month table itself.",
            calls=(Call("read_file", {"path": "src/almanac/months.py"}),),
        ),
        Turn(
            reasoning="The table holds ASCII names only, and the parser never folds umlauts.",
            text="The table knows mar but not märz. I check what the test expects.",
            calls=(Call("read_file", {"path": "tests/test_parse.py"}),),
        ),
        Turn(
            text=f"Round {turn + 1}: `test_month_names` fails because **months.py has no German "
            "names**. The public signature of `parse_date` must not change, so the fix is a "
            "second table, chosen by locale:\n\n```python\nMONTHS = {**ENGLISH, **GERMAN}\n```\n\n"
            "Next: add `GERMAN` to `src/almanac/months.py` and run the 24 tests again."
        ),
    )
    return steps[place]


def _words(count: int) -> str:
    base = [
        "memory",
        "is",
        "what",
        "is",
        "stored",
        "and",
        "a",
        "view",
        "is",
        "what",
        "the",
        "model",
        "may",
        "read",
        "of",
        "it",
    ]
    return " ".join(base[n % len(base)] for n in range(count))


def _slow(step: int, messages: Sequence[ModelMessage]) -> Turn:
    del step, messages
    return Turn(reasoning="I take my time.", text=_words(600))


def _hello(step: int, messages: Sequence[ModelMessage]) -> Turn:
    del step, messages
    return Turn(text="Hello. This is a scripted model: no key, no network.")


def _echo(step: int, messages: Sequence[ModelMessage]) -> Turn:
    del step
    return Turn(text=last_question(messages) or "(nothing was asked)")


def _broken(step: int, messages: Sequence[ModelMessage]) -> Turn:
    del step, messages
    return Turn(text="This answer breaks off in the", error="the connection was reset")


def _flaky(step: int, messages: Sequence[ModelMessage]) -> Turn:
    """Fail two times of three in a way that passes."""
    del messages
    if step % _FLAKY_EVERY < _FLAKY_EVERY - 1:
        return Turn(
            text="This attempt comes to",
            error="the model is overloaded",
            error_kind="overloaded",
            retry_after_s=0.2,
        )
    return Turn(text="The third attempt came through; the first two are kept, marked and unsent.")


def _tool_loop(step: int, messages: Sequence[ModelMessage]) -> Turn:
    del step, messages
    return Turn(text="Again.", calls=(Call("run_tests", {}),))


def _flood(deltas: int) -> Callable[[int, Sequence[ModelMessage]], Turn]:
    def answer(step: int, messages: Sequence[ModelMessage]) -> Turn:
        del step, messages
        return Turn(text=_words(deltas))

    return answer


SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (
        Script(
            name="tour",
            about="reasoning, two tools, a tool error, a window small enough to be compacted",
            answer=_tour,
            tools=(read_file, run_tests),
            limits=ModelLimits(context=6_000, output=1_000),
        ),
        Script(name="hello", about="one short text", answer=_hello),
        Script(name="echo", about="your words again", answer=_echo),
        Script(name="slow", about="600 words at 40 words a second", answer=_slow, pace_s=1 / 40),
        Script(name="flood", about="n deltas at once: flood?n=20000", answer=_flood(20_000)),
        Script(name="broken", about="a stream that breaks off", answer=_broken),
        Script(name="flaky", about="two failures that pass, then an answer", answer=_flaky),
        Script(
            name="tool-loop", about="calls a tool for ever", answer=_tool_loop, tools=(run_tests,)
        ),
    )
}
"""Every script by its name."""


def make_script(name: str, options: Mapping[str, str]) -> Script:
    """Return a named script.

    Parameters
    ----------
    name
        One of `SCRIPTS`.
    options
        ``n``, the number of deltas, for ``flood``.

    Raises
    ------
    UsageError
        For a name or an option that does not exist.
    """
    if name not in SCRIPTS:
        msg = f"there is no script {name!r}; there are {sorted(SCRIPTS)}"
        raise UsageError(msg)
    script = SCRIPTS[name]
    if not options:
        return script
    count = options.get("n", "")
    if name != "flood" or set(options) != {"n"} or not count.isdecimal():
        msg = f"script {name!r} does not take {dict(options)!r}; only flood takes n=NUMBER"
        raise UsageError(msg)
    return Script(name=name, about=script.about, answer=_flood(int(count)), limits=script.limits)
