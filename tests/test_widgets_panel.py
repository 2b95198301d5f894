from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from forge_nb.errors import UsageError
from forge_nb.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Toy(Panel):
    """A panel that keeps what it sends."""

    _esm = "export default { render() {} };"

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__()

    def send(self, content: dict[str, Any], buffers: object = None) -> None:
        del buffers
        self.sent.append(content)

    @property
    def answers(self) -> Mapping[str, Callable[..., Any]]:
        async def slowly(n: int) -> int:
            return 2 * n

        def refuse() -> None:
            msg = "not this value: 7"
            raise UsageError(msg)

        return {"double": lambda n: 2 * n, "slowly": slowly, "refuse": refuse}

    def twin_text(self) -> str:
        return "a toy"


async def ask(toy: Toy, what: str, **args: Any) -> dict[str, Any]:
    toy._receive(None, {"kind": "ask", "id": "v.1", "what": what, "args": args}, [])
    for _ in range(5):
        await asyncio.sleep(0)
    (answer,) = toy.sent
    return answer


@pytest.mark.parametrize("what", ["double", "slowly"])
async def test_an_answer_carries_the_questions_id(what: str) -> None:
    answer = await ask(Toy(), what, n=21)

    assert answer == {"kind": "answer", "id": "v.1", "value": 42}


async def test_a_refusal_crosses_as_its_words() -> None:
    answer = await ask(Toy(), "refuse")

    assert answer == {"kind": "answer", "id": "v.1", "error": "not this value: 7"}


async def test_an_unknown_question_says_what_may_be_asked() -> None:
    answer = await ask(Toy(), "sing")

    assert "'sing'" in answer["error"]
    assert "double" in answer["error"]


async def test_a_fault_of_ours_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await ask(Toy(), "double", m=1)

    assert answer["error"].startswith("TypeError: ")
    assert caplog.records[0].exc_info is not None


async def test_what_is_no_question_is_left_alone() -> None:
    toy = Toy()

    toy._receive(None, "junk", [])
    toy._receive(None, {"kind": "ack", "n": 1}, [])
    await asyncio.sleep(0)

    assert toy.sent == []


async def test_each_panel_names_its_own_twin() -> None:
    assert Toy().twin != Toy().twin
    assert repr(Toy()) == "a toy"
