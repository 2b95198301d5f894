"""Words that other programs and recordings depend on, in one table.

They are protocol constants of the opencode family; prompts for summaries and titles are not among
them and are our own.
"""

from __future__ import annotations

__all__ = [
    "ABORTED_MESSAGE",
    "ATTACHED_TOOL_MEDIA",
    "COMPACTION_ASKED",
    "CONTENT_FILTERED",
    "CONTINUE_AFTER_COMPACTION",
    "CONTINUE_KEY",
    "ERROR_ABORTED",
    "ERROR_API",
    "ERROR_AUTH",
    "ERROR_CONTENT_FILTER",
    "ERROR_OUTPUT_LENGTH",
    "ERROR_OVERFLOW",
    "ERROR_STRUCTURED",
    "ERROR_SUMMARY_BLANK",
    "ERROR_SUMMARY_NOT_SMALLER",
    "ERROR_UNKNOWN",
    "INTERRUPTED_KEY",
    "SUBTASK_ASKED",
    "SUMMARY_AGENT",
    "TOOL_ABORTED",
    "TOOL_INTERRUPTED",
    "TOOL_OUTPUT_CLEARED",
]

COMPACTION_ASKED = "What did we do so far?"
"""What the model reads in place of a compaction request."""
SUBTASK_ASKED = "The following tool was executed by the user"
"""What the model reads in place of a subtask part."""
CONTINUE_AFTER_COMPACTION = (
    "Continue if you have next steps, or stop and ask for clarification if you are unsure how to "
    "proceed."
)
"""Synthetic user text after an automatic compaction."""
CONTINUE_KEY = "compaction_continue"
"""Metadata key that marks that text."""
TOOL_INTERRUPTED = "[Tool execution was interrupted]"
"""Error that the model reads for a tool that never ended."""
TOOL_OUTPUT_CLEARED = "[Old tool result content cleared]"
"""What the model reads in place of a pruned output."""
TOOL_ABORTED = "Tool execution aborted"
"""Error of a tool that cleanup closed."""
INTERRUPTED_KEY = "interrupted"
"""Tool metadata key set by cleanup."""
ATTACHED_TOOL_MEDIA = "Attached media from tool result:"
"""Text of the extra user message that carries a tool's images."""
ABORTED_MESSAGE = "Aborted"
"""Text of an abort's error."""
SUMMARY_AGENT = "compaction"
"""Agent and mode of a summary."""

CONTENT_FILTERED = "The response was blocked by the provider's content filter"
"""Text of the error of an answer that the provider's filter cut."""

ERROR_ABORTED = "MessageAbortedError"
ERROR_API = "APIError"
ERROR_AUTH = "ProviderAuthError"
ERROR_CONTENT_FILTER = "ContentFilterError"
ERROR_OUTPUT_LENGTH = "MessageOutputLengthError"
ERROR_OVERFLOW = "ContextOverflowError"
ERROR_STRUCTURED = "StructuredOutputError"
ERROR_UNKNOWN = "UnknownError"
ERROR_SUMMARY_BLANK = "SummaryBlankError"
"""Ours: a summary without text, which is no boundary."""
ERROR_SUMMARY_NOT_SMALLER = "SummaryNotSmallerError"
"""Ours: a summary that is not shorter than what it would replace."""
