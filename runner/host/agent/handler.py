"""Request handlers of an agent: their base class, and the context they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional

from runner.core.model.facts import FactsRequest
from runner.core.protocol.frames import Frame
from runner.core.protocol.timing import CONTROLLER_TIMEOUT_S
from runner.host.process.job_queue import JobQueue

if TYPE_CHECKING:
    from runner.host.facts.collect import FactsResult

Reply = Callable[..., None]
"""Takes the kind of an answer, its data, and perhaps raw bytes."""


class AgentContext:
    """One conversation with one controller, as the request handlers see it.

    Attributes:
        reply: Queues an answer.
        jobs: The queue of long requests.
        can_send: Whether the controller takes what is sent.
        get_handler: Returns the handler that answers a kind of request, loading it if need be.
        in_fd: The descriptor that the controller's requests come from.
        programs: The texts of those of our files that become files on this host.
        controller_timeout_s: Silence of the controller after which the agent exits.
        facts: What this host reported, once it was asked.
        facts_request: What it was asked for last.
        followed_workdir: The workdir of the run that is followed; "" for none.
    """

    def __init__(
        self,
        reply: Reply,
        can_send: Callable[[], bool],
        get_handler: Callable[[str], Any],
        in_fd: int = -1,
        programs: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.reply = reply
        self.can_send = can_send
        self.get_handler = get_handler
        self.in_fd = in_fd
        self.programs = programs or {}
        self.controller_timeout_s = CONTROLLER_TIMEOUT_S
        self.jobs = JobQueue(reply, lambda frame, error: self.refuse(frame, error_text(error)))
        self.facts: Optional[FactsResult] = None
        self.facts_request = FactsRequest("")
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
            raise RuntimeError("this agent has not reported its facts yet")
        return self.facts

    @property
    def workdir(self) -> str:
        """Where runs are kept on this host.

        Raises:
            RuntimeError: It was not asked for facts yet, and follows no run.
        """
        return self.followed_workdir or self.require_facts().facts.workdir


HandlerTable = Dict[str, Callable[[Frame], None]]


class RequestHandler:
    """The kinds of requests that one module answers."""

    def __init__(self, context: AgentContext) -> None:
        self.context = context

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
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
        """Continue what was begun; called at every turn of the loop."""

    def renew_lease(self) -> None:
        """Pass on that the controller was heard."""

    def close(self) -> None:
        """Clean up: the controller left."""


def error_text(error: Exception) -> str:
    """Return an error as a message for the user."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
