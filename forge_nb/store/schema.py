"""The tables, once, for every dialect.

Hot fields are typed columns that stand before the JSON `data`, because SQLite then reads them
without touching the pages into which long JSON overflows (measured: 5 to 10 times faster
aggregates). `data` is the family's JSON as it was read or written, unknown fields included, so
that an export gives back what came in. Times are integer milliseconds UTC. The tenant leads every
key. Unknown is NULL.
"""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "SCHEMA_VERSION",
    "TYPED_TOKENS",
    "event",
    "lease",
    "message",
    "meta",
    "metadata",
    "part",
    "session",
    "tenant",
    "tombstone",
    "usage",
]

SCHEMA_VERSION = 1
"""Number of the newest migration."""

TYPED_TOKENS = (
    "tokens_input",
    "tokens_output",
    "tokens_reasoning",
    "tokens_cache_read",
    "tokens_cache_write",
    "tokens_total_reported",
)
"""Token columns in the order of `messages.usage.TOKEN_KINDS`, then the provider's own total."""

metadata = sa.MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)


def _text(name: str, *, nullable: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _int(name: str, *, nullable: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _real(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double)


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _tokens() -> list[sa.Column[int]]:
    return [_int(name) for name in TYPED_TOKENS]


def _origin() -> list[sa.Column[str]]:
    """Where the row comes from; all NULL for rows written here."""
    return [_text("origin_format"), _text("origin_hash"), _text("origin_id")]


tenant = sa.Table("tenant", metadata, _key("tenant_id"), _int("rev", nullable=False))

session = sa.Table(
    "session",
    metadata,
    _key("tenant_id"),
    _key("id"),
    _int("seq", nullable=False),  # last number given out
    _int("rev", nullable=False),
    _text("parent_id"),
    _text("title"),
    _text("project_id"),
    _text("directory"),
    _text("agent"),
    _text("provider"),
    _text("model"),
    _text("version"),
    *_tokens(),  # sums over usage
    _real("cost_usd"),  # sum over usage; NULL when nothing has a price
    _real("cost_recorded_usd"),  # sum over usage of what was recorded
    _int("time_created"),
    _int("time_updated"),
    *_origin(),
    _int("has_local_rows", nullable=False),
    sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
    sa.Column(
        "data_imported", sa.JSON(none_as_null=True)
    ),  # set when an imported session's row is changed here
    sa.Index(None, "tenant_id", "rev"),
    sa.Index(None, "tenant_id", "parent_id"),
)

message = sa.Table(
    "message",
    metadata,
    _key("tenant_id"),
    _key("session_id"),
    _key("id"),
    _int("seq", nullable=False),
    _int("rev", nullable=False),
    _text("role", nullable=False),
    _text("parent_id"),
    _text("provider"),
    _text("model"),
    _text("agent"),
    _text("mode"),
    _int("is_summary"),
    _text("finish"),
    _text("error"),  # the error's name
    _text("prompt_state"),
    *_tokens(),
    _real("cost_recorded_usd"),
    _int("time_created"),
    _int("time_completed"),
    *_origin(),
    sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
    sa.Index(None, "tenant_id", "session_id", "seq", unique=True),
    sa.Index(None, "tenant_id", "rev"),
)

part = sa.Table(
    "part",
    metadata,
    _key("tenant_id"),
    _key("session_id"),
    _key("id"),
    _text("message_id", nullable=False),
    _int("seq", nullable=False),
    _int("rev", nullable=False),
    _text("type", nullable=False),
    _text("tool"),
    _text("call_id"),
    _text("status"),
    _text("reason"),  # of a step-finish
    *_tokens(),
    _real("cost_recorded_usd"),
    _int("chars"),  # length of the text, output or error
    _int("input_chars"),  # length of a tool input's JSON
    _int("synthetic"),
    _int("ignored"),
    _int("auto"),  # of a compaction
    _int("overflow"),
    _text("tail_start_id"),
    _int("time_start"),
    _int("time_end"),
    _int("time_compacted"),
    _int("attempt", nullable=False),
    _int("discarded", nullable=False),
    _text("cost_source"),
    sa.Column("prices", sa.JSON(none_as_null=True)),
    *_origin(),
    sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
    sa.Index(None, "tenant_id", "session_id", "message_id", "seq"),
    sa.Index(None, "tenant_id", "rev"),
)

usage = sa.Table(
    "usage",
    metadata,
    _key("tenant_id"),
    _key("session_id"),
    _key("id"),
    _int("seq", nullable=False),
    _int("rev", nullable=False),
    _text("message_id"),
    _text("purpose", nullable=False),
    _text("provider"),
    _text("model"),
    _int("attempt", nullable=False),
    *_tokens(),
    _real("cost_usd"),
    _real("cost_recorded_usd"),
    _text("cost_source"),
    sa.Column("prices", sa.JSON(none_as_null=True)),
    _int("started_ms"),
    _int("finished_ms"),
    _text("origin_id"),  # first record of the same call, on a fork's copy
    sa.Index(None, "tenant_id", "session_id", "seq"),
    sa.Index(None, "tenant_id", "rev"),
)

event = sa.Table(
    "event",
    metadata,
    _key("tenant_id"),
    _key("session_id"),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    _int("rev", nullable=False),
    _text("type", nullable=False),
    _text("entity_id", nullable=False),
    _text("state"),  # a part's status, a message's finish, a prompt's state
    _int("time_ms", nullable=False),
    sa.Column("data", sa.JSON(none_as_null=True)),  # only with event_log="full"
)

tombstone = sa.Table(
    "tombstone",
    metadata,
    _key("tenant_id"),
    _key("kind"),
    _key("session_id"),
    _key("id"),
    _int("rev", nullable=False),
    sa.Index(None, "tenant_id", "rev"),
)

lease = sa.Table(
    "lease",
    metadata,
    _key("tenant_id"),
    _key("session_id"),
    _text("owner", nullable=False),
    _int("heartbeat_ms", nullable=False),
)

meta = sa.Table("meta", metadata, _key("key"), _text("value", nullable=False))
