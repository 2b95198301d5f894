from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_nb.errors import CursorError
from forge_nb.store.cursor import decode_cursor, encode_cursor


@given(st.text(), st.integers(min_value=0, max_value=2**63 - 1))
def test_a_cursor_comes_back(session_id: str, seq: int) -> None:
    assert decode_cursor(session_id, encode_cursor(session_id, seq)) == seq


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CursorError):
        decode_cursor("ses_1", text)


def test_a_cursor_of_another_session_is_refused_with_the_remedy() -> None:
    with pytest.raises(CursorError, match="belongs to another session; pass on `next_cursor`"):
        decode_cursor("ses_2", encode_cursor("ses_1", 3))


def test_a_cursor_of_another_version_is_refused() -> None:
    raw = base64.urlsafe_b64decode(encode_cursor("ses_1", 3) + "==")
    newer = base64.urlsafe_b64encode(b"\x02" + raw[1:]).decode()
    with pytest.raises(CursorError, match="another version"):
        decode_cursor("ses_1", newer)


def test_a_cursor_cut_short_is_refused() -> None:
    cursor = encode_cursor("ses_1", 123_456)
    for length in range(len(cursor)):
        with pytest.raises(CursorError):
            decode_cursor("ses_1", cursor[:length])


def test_a_refusal_shows_no_more_than_a_line() -> None:
    with pytest.raises(CursorError) as caught:
        decode_cursor("ses_1", "A" * 5_000)
    assert len(str(caught.value)) < 300
