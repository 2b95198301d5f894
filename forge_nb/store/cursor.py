"""Opaque page cursors: a place in one session, with a version so that the form may change."""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from forge_nb.errors import CursorError

__all__ = ["decode_cursor", "encode_cursor"]

_VERSION = b"\x01"
_HASH_CHARS = 12  # of the session id's SHA-256: enough to notice a cursor of another session


def encode_cursor(session_id: str, seq: int) -> str:
    """Return the cursor of the place before `seq` in a session.

    Examples
    --------
    >>> decode_cursor("ses_a", encode_cursor("ses_a", 7))
    7
    """
    body = msgspec.json.encode([_hash(session_id), seq])
    return base64.urlsafe_b64encode(_VERSION + body).decode().rstrip("=")


def decode_cursor(session_id: str, cursor: str) -> int:
    """Return the `seq` that a cursor stands for.

    Parameters
    ----------
    session_id
        The session that is read.
    cursor
        What `encode_cursor` gave.

    Raises
    ------
    CursorError
        When it was cut or edited, or belongs to another session.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        owner, seq = msgspec.json.decode(raw[1:], type=tuple[str, int])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _refusal(session_id, cursor, "is not a page cursor") from None
    if raw[:1] != _VERSION:
        raise _refusal(session_id, cursor, "was made by another version")
    if owner != _hash(session_id):
        raise _refusal(session_id, cursor, "belongs to another session")
    return seq


def _refusal(session_id: str, cursor: str, fault: str) -> CursorError:
    shown = cursor if len(cursor) <= 60 else f"{cursor[:60]}…"  # noqa: PLR2004  one line
    msg = (
        f"{shown!r} {fault}; pass on `next_cursor` of a page of {session_id!r} as it came, "
        "or leave it out to read from the newest message"
    )
    return CursorError(msg, cursor=cursor, session_id=session_id)


def _hash(session_id: str) -> str:
    whole = hashlib.sha256(session_id.encode("utf-8", "surrogatepass"))
    return whole.hexdigest()[:_HASH_CHARS]
