"""The strategy ``summary``: the model condenses the head, the tail stays word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_nb.compaction.boundary import Boundary
from forge_nb.compaction.prompt import SUMMARY_SYSTEM, summary_prompt
from forge_nb.compaction.written import job_record
from forge_nb.messages.render import ModelMessage, ModelPart
from forge_nb.processor import Processor, status
from forge_nb.providers.base import ModelRequest
from forge_nb.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from forge_nb.compaction.base import CompactionJob, CompactionResult

__all__ = ["ModelSummary", "summary_request"]


class ModelSummary:
    """Asks the session's own model for the summary."""

    name = "summary"

    async def compact(self, job: CompactionJob) -> CompactionResult:
        """Let the model summarise; its call is recorded with the purpose ``compaction``."""
        boundary = Boundary(job)
        job.session.announce(status(job.session.id, "compacting"))
        await boundary.open()
        processor = Processor(
            job.session,
            job.setup.provider,
            boundary.summary,
            tools=ToolRegistry([]),
            settings=job.settings,
            purpose="compaction",
            on_finish=boundary.commit,
        )
        await processor.process(summary_request(job))
        return boundary.result(processor.message)


def summary_request(job: CompactionJob) -> ModelRequest:
    """Return what the model is asked: one text with the record, the earlier summary, the order."""
    text = summary_prompt(job_record(job), prior=job.prior, pinned=job.settings.pinned)
    part = ModelPart(id="summary-request", kind="text", text=text)
    return ModelRequest(
        model=job.setup.model,
        system=[SUMMARY_SYSTEM],
        messages=[ModelMessage(id="summary-request", role="user", parts=(part,))],
        tools=[],
        purpose="compaction",
    )
