"""The views that people query, as SQL over the mirrored rows.

One row per session, message, part, model call, tool call, and compaction request. The frames of
the same names are these views, fetched. NULL means not known.
"""

from __future__ import annotations

__all__ = ["FRAME_ORDER", "VIEWS"]

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_TIME = "make_timestamptz({} * 1000)"
_KNOWN_SUM = "CASE WHEN COALESCE({0}) IS NULL THEN NULL ELSE {1} END"


def _at(column: str) -> str:
    """Return SQL for a time column as a timestamp; a time outside the years 1 to 9999 is NULL."""
    return f"CASE WHEN {column} BETWEEN {_FIRST_MS} AND {_LAST_MS} THEN {_TIME.format(column)} END"


def _sum(*columns: str) -> str:
    """Return SQL for the sum of the known values; NULL when none is known."""
    known = " + ".join(f"COALESCE({column}, 0)" for column in columns)
    return _KNOWN_SUM.format(", ".join(columns), known)


_FIVE = ("tokens_input", "tokens_output", "tokens_reasoning", "tokens_cache_read")
_TOTAL = _sum(*(f"u.{name}" for name in (*_FIVE, "tokens_cache_write")))
_CONTEXT = _sum("u.tokens_input", "u.tokens_cache_read", "u.tokens_cache_write")

_CALLS = """
CREATE VIEW call_row AS
SELECT m.*, row_number() OVER (PARTITION BY m.session_id ORDER BY m.seq) AS step
FROM message_row m
WHERE m.role = 'assistant' AND (
    COALESCE(m.tokens_input, 0) + COALESCE(m.tokens_output, 0) + COALESCE(m.tokens_reasoning, 0)
        + COALESCE(m.tokens_cache_read, 0) + COALESCE(m.tokens_cache_write, 0) > 0
    OR EXISTS (SELECT 1 FROM part_row p WHERE p.session_id = m.session_id
               AND p.message_id = m.id AND p.type = 'step-start')
    OR (m.model IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM part_row p WHERE p.session_id = m.session_id
                        AND p.message_id = m.id AND p.type = 'tool')))
"""

_OUTCOME = """
CASE WHEN m.error = 'MessageAbortedError' THEN 'aborted'
     WHEN m.error IS NOT NULL THEN 'failed'
     WHEN m.finish IS NOT NULL THEN 'completed'
     WHEN m.time_completed IS NULL AND m.origin_format IS NULL THEN 'running'
     ELSE 'interrupted' END
"""

_STEPS = f"""
CREATE VIEW steps AS
SELECT m.session_id, m.id AS message_id, m.step,
    COALESCE(u.purpose, CASE WHEN m.is_summary = 1 THEN 'compaction' ELSE 'turn' END) AS purpose,
    COALESCE(u.provider, m.provider) AS provider, COALESCE(u.model, m.model) AS model, m.agent,
    {_at("COALESCE(u.started_ms, m.time_created)")} AS started_at,
    {_at("COALESCE(u.finished_ms, m.time_completed)")} AS finished_at,
    u.tokens_input, u.tokens_output, u.tokens_reasoning, u.tokens_cache_read,
    u.tokens_cache_write, {_TOTAL} AS tokens_total, {_CONTEXT} AS context_tokens,
    u.cost_usd, u.cost_recorded_usd, u.cost_source, m.finish, {_OUTCOME} AS outcome, m.error,
    COALESCE(row_number() OVER (PARTITION BY m.session_id, m.id ORDER BY u.seq), 1) AS attempt,
    u.tokens_total_reported, u.origin_id AS copy_of
FROM call_row m LEFT JOIN usage_row u ON u.session_id = m.session_id AND u.message_id = m.id
UNION ALL
SELECT u.session_id, u.message_id, NULL, u.purpose, u.provider, u.model, NULL,
    {_at("u.started_ms")}, {_at("u.finished_ms")},
    u.tokens_input, u.tokens_output, u.tokens_reasoning, u.tokens_cache_read,
    u.tokens_cache_write, {_TOTAL}, {_CONTEXT}, u.cost_usd, u.cost_recorded_usd, u.cost_source,
    NULL, 'completed', NULL, u.attempt, u.tokens_total_reported, u.origin_id
FROM usage_row u
WHERE NOT EXISTS (SELECT 1 FROM call_row m
                  WHERE m.session_id = u.session_id AND m.id = u.message_id)
"""

_SUMMARIES = """
CREATE VIEW summary_row AS
SELECT * FROM (
    SELECT m.*, COALESCE(t.has_text, false) AS has_text,
        row_number() OVER (PARTITION BY m.session_id, m.parent_id ORDER BY
            (m.finish IS NOT NULL AND m.error IS NULL AND COALESCE(t.has_text, false)) DESC,
            m.seq DESC) AS preference
    FROM message_row m LEFT JOIN summary_text t
        ON t.session_id = m.session_id AND t.message_id = m.id
    WHERE m.is_summary = 1)
WHERE preference = 1
"""

_REQUESTS = """
CREATE VIEW request_row AS
SELECT p.session_id, p.message_id, m.seq, m.time_created, p.auto, p.overflow, p.tail_start_id,
    s.id AS summary_id, s.seq AS summary_seq, s.time_created AS summary_created,
    s.time_completed AS summary_completed,
    CASE WHEN s.id IS NULL THEN 'pending'
         WHEN s.error = 'MessageAbortedError' THEN 'aborted'
         WHEN s.error = 'SummaryBlankError' THEN 'blank'
         WHEN s.error = 'SummaryNotSmallerError' THEN 'not smaller'
         WHEN s.error IS NOT NULL THEN 'failed'
         WHEN s.finish IS NULL AND s.time_completed IS NULL THEN 'pending'
         WHEN s.finish IS NULL THEN 'failed'
         WHEN NOT s.has_text THEN 'blank'
         ELSE 'done' END AS outcome
FROM part_row p
JOIN message_row m ON m.session_id = p.session_id AND m.id = p.message_id AND m.role = 'user'
LEFT JOIN summary_row s ON s.session_id = p.session_id AND s.parent_id = p.message_id
WHERE p.type = 'compaction'
QUALIFY row_number() OVER (PARTITION BY p.session_id, p.message_id ORDER BY p.seq) = 1
"""

_SUMMARY_USAGE = """
CREATE VIEW summary_usage AS
SELECT u.* EXCLUDE (cost_usd),
    sum(u.cost_usd) OVER (PARTITION BY u.session_id, u.message_id) AS cost_usd
FROM usage_row u JOIN message_row m
    ON m.session_id = u.session_id AND m.id = u.message_id AND m.is_summary = 1
QUALIFY row_number() OVER (PARTITION BY u.session_id, u.message_id ORDER BY u.seq DESC) = 1
"""

_TURNS = """
CREATE VIEW turn_row AS
SELECT s.session_id, c.seq, s.context_tokens, s.tokens_total
FROM steps s JOIN call_row c ON c.session_id = s.session_id AND c.id = s.message_id
WHERE s.purpose = 'turn' AND s.context_tokens > 0
QUALIFY row_number() OVER (PARTITION BY s.session_id, s.message_id ORDER BY s.attempt DESC) = 1
"""

_COMPACTIONS = f"""
CREATE VIEW compactions AS
SELECT r.session_id, row_number() OVER (PARTITION BY r.session_id ORDER BY r.seq) AS number,
    r.message_id AS request_id, r.summary_id, r.outcome,
    CASE WHEN r.auto = 0 THEN 'manual' WHEN r.overflow = 1 THEN 'overflow'
         ELSE 'threshold' END AS trigger,
    r.tail_start_id,
    (SELECT count(*) FROM message_row t, message_row f
     WHERE f.session_id = r.session_id AND f.id = r.tail_start_id
        AND t.session_id = r.session_id AND t.seq >= f.seq AND t.seq < r.seq) AS tail_messages,
    b.context_tokens AS context_before,
    CASE WHEN r.outcome = 'done' THEN a.context_tokens END AS context_after,
    b.tokens_total AS total_before,
    CASE WHEN r.outcome = 'done' THEN a.tokens_total END AS total_after,
    {_CONTEXT} AS summary_tokens_in, u.tokens_output AS summary_tokens_out, u.cost_usd,
    (r.summary_completed - r.summary_created) / 1000.0 AS seconds,
    {_at("r.time_created")} AS requested_at
FROM request_row r
ASOF LEFT JOIN turn_row b ON b.session_id = r.session_id AND b.seq < r.seq
ASOF LEFT JOIN turn_row a ON a.session_id = r.session_id AND a.seq > r.summary_seq
LEFT JOIN summary_usage u ON u.session_id = r.session_id AND u.message_id = r.summary_id
"""

_TOOLS = f"""
CREATE VIEW tools AS
SELECT p.session_id, p.message_id, p.id AS part_id, c.step, p.tool, p.call_id, p.status,
    {_at("p.time_start")} AS started_at,
    {_at("p.time_end")} AS finished_at,
    (p.time_end - p.time_start) / 1000.0 AS seconds,
    p.input_chars, p.chars AS output_chars,
    {_at("p.time_compacted")} AS cleared_at, p.attempt,
    p.discarded = 1 AS discarded
FROM part_row p LEFT JOIN call_row c ON c.session_id = p.session_id AND c.id = p.message_id
WHERE p.type = 'tool'
"""

_PARTS = f"""
CREATE VIEW parts AS
SELECT p.session_id, p.message_id, p.id, p.seq, c.step, p.type, p.tool, p.status, p.chars,
    p.synthetic = 1 AS synthetic, p.ignored = 1 AS ignored,
    {_at("p.time_start")} AS started_at,
    {_at("p.time_end")} AS finished_at,
    {_at("p.time_compacted")} AS cleared_at,
    p.tokens_input, p.tokens_output, p.tokens_reasoning, p.tokens_cache_read,
    p.tokens_cache_write, p.cost_recorded_usd, p.attempt, p.discarded = 1 AS discarded,
    CASE WHEN p.origin_format IS NULL THEN 'local' ELSE 'imported' END AS origin
FROM part_row p LEFT JOIN call_row c ON c.session_id = p.session_id AND c.id = p.message_id
"""

_MESSAGES = f"""
CREATE VIEW messages AS
SELECT m.session_id, m.id, m.seq, m.role, m.parent_id, c.step, m.provider, m.model, m.agent,
    m.is_summary = 1 AS is_summary, m.finish, m.error, m.prompt_state,
    CASE WHEN m.role = 'assistant' THEN {_OUTCOME} END AS outcome,
    (SELECT count(*) FROM part_row p
     WHERE p.session_id = m.session_id AND p.message_id = m.id) AS parts,
    m.tokens_input, m.tokens_output, m.tokens_reasoning, m.tokens_cache_read,
    m.tokens_cache_write, m.cost_recorded_usd,
    {_at("m.time_created")} AS created_at,
    {_at("m.time_completed")} AS completed_at,
    CASE WHEN m.origin_format IS NULL THEN 'local' ELSE 'imported' END AS origin
FROM message_row m LEFT JOIN call_row c ON c.session_id = m.session_id AND c.id = m.id
"""

_SESSIONS = f"""
CREATE VIEW sessions AS
SELECT s.id, s.title, s.parent_id, s.project_id, s.directory, s.version, s.agent, s.provider,
    s.model,
    (SELECT count(*) FROM message_row m WHERE m.session_id = s.id) AS messages,
    (SELECT count(*) FROM part_row p WHERE p.session_id = s.id) AS parts,
    (SELECT count(*) FROM call_row c WHERE c.session_id = s.id) AS steps,
    (SELECT count(*) FROM request_row r
     WHERE r.session_id = s.id AND r.outcome = 'done') AS compactions,
    s.tokens_input, s.tokens_output, s.tokens_reasoning, s.tokens_cache_read,
    s.tokens_cache_write, s.cost_usd, s.cost_recorded_usd,
    {_at("s.time_created")} AS created_at,
    {_at("s.time_updated")} AS updated_at,
    CASE WHEN s.origin_format IS NULL THEN 'local' ELSE 'imported' END AS origin,
    s.origin_format, s.has_local_rows = 1 AS has_local_rows
FROM session_row s
"""

VIEWS = (
    _CALLS,
    _STEPS,
    _SUMMARIES,
    _REQUESTS,
    _SUMMARY_USAGE,
    _TURNS,
    _COMPACTIONS,
    _TOOLS,
    _PARTS,
    _MESSAGES,
    _SESSIONS,
)
"""Statements that make the views, in the order in which they need each other."""

FRAME_ORDER = {
    "sessions": "created_at, id",
    "messages": "session_id, seq",
    "parts": "session_id, seq",
    "steps": "session_id, step NULLS LAST, attempt",
    "tools": "session_id, step, started_at, part_id",
    "compactions": "session_id, number",
}
"""The frames, and how each is ordered."""
