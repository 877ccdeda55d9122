"""What the parts of a link share: the wire as they see it, and what the host said of itself."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from runner.core.protocol.frames import Frame
from runner.host.facts.collect import FactsResult
from runner.host.process.job_queue import JobQueue

Reply = Callable[..., None]
"""Takes the kind of an answer, its data, and perhaps raw bytes."""


class AgentContext:
    """One conversation with one controller, as those who answer see it.

    Attributes:
        reply: Queues an answer.
        jobs: The queue of long requests.
        can_send: Whether the controller takes what is sent.
        controller_timeout_s: A link that hears nothing for so long has no controller any more.
        facts: What this host reported, once it was asked.
        followed_workdir: The workdir of the run that is followed; "" for none.
    """

    def __init__(
        self, reply: Reply, controller_timeout_s: float, can_send: Callable[[], bool]
    ) -> None:
        self.reply = reply
        self.can_send = can_send
        self.controller_timeout_s = controller_timeout_s
        self.jobs = JobQueue(reply, lambda frame, error: self.refuse(frame, error_text(error)))
        self.facts: Optional[FactsResult] = None
        self.followed_workdir = ""

    def refuse(self, frame: Frame, reason: str) -> None:
        """Answer that something could not be done."""
        self.reply("refused", {"id": frame.data.get("id"), "reason": reason})

    def require_facts(self) -> FactsResult:
        """Return what this host reported.

        Raises:
            RuntimeError: It was not asked yet.
        """
        if self.facts is None:
            raise RuntimeError("this link has not reported its facts yet")
        return self.facts

    @property
    def workdir(self) -> str:
        """Where runs are kept on this host.

        Raises:
            RuntimeError: It was not asked yet, and follows no run.
        """
        return self.followed_workdir or self.require_facts().facts.workdir


HandlerTable = Dict[str, Callable[[Frame], None]]


class RequestHandler:
    """A kind of requests that a link answers."""

    def __init__(self, context: AgentContext) -> None:
        self.context = context

    def handlers(self) -> HandlerTable:
        """Return what answers each kind of request."""
        return {}

    @property
    def busy(self) -> bool:
        """Whether files should be looked at more often."""
        return False

    @property
    def pipes(self) -> Any:
        """Descriptors to wake up for."""
        return ()

    def advance(self) -> None:
        """Go on with what was begun; called at every turn."""

    def close(self) -> None:
        """The controller left."""


def error_text(error: Exception) -> str:
    """Return an error in the words for a user."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
