"""Ids have the family's shape; their order means nothing."""

from __future__ import annotations

from random import Random

from forge_nb.messages.ids import IdSource, make_id


def test_ids_have_the_published_time_digits() -> None:
    known = {
        1700000000000: "bcfe56800001",
        1770940800000: "c544c1c00001",
        1786706395135: "fffffffff001",
        1786706395136: "000000000001",
    }
    for at_ms, digits in known.items():
        made = make_id("msg", at_ms=at_ms, counter=1, random=Random(0))
        assert made.startswith(f"msg_{digits}")
        assert len(made) == len("msg_") + 26


def test_sessions_count_down() -> None:
    made = make_id("ses", at_ms=1700000000000, counter=1, random=Random(0))
    assert made.startswith("ses_4301a97ffffe")


def test_ids_of_one_millisecond_differ_and_a_seed_repeats_them() -> None:
    first, second = IdSource(lambda: 5, Random(3)), IdSource(lambda: 5, Random(3))
    made = [first("prt") for _ in range(100)]
    assert len(set(made)) == 100
    assert made == [second("prt") for _ in range(100)]
