"""What the parts of a link share: the wire as they see it, and what the host said of itself."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from runner.core.protocol.frames import Frame
from runner.host.facts.collect import Collected
from runner.host.process.job_queue import Work

Reply = Callable[..., None]
"""Takes the kind of an answer, its data, and perhaps raw bytes."""


class Wire:
    """One conversation with one controller, as those who answer see it.

    Attributes:
        reply: Queues an answer.
        work: The queue of long requests.
        room: Whether the controller takes what is sent.
        silence_s: A link that hears nothing for so long has no controller any more.
        known: What this host reported, once it was asked.
        place: The workdir of the run that is followed; "" for none.
    """

    def __init__(self, reply: Reply, silence_s: float, room: Callable[[], bool]) -> None:
        self.reply = reply
        self.room = room
        self.silence_s = silence_s
        self.work = Work(reply, lambda frame, why: self.refuse(frame, said(why)))
        self.known: Optional[Collected] = None
        self.place = ""

    def refuse(self, frame: Frame, why: str) -> None:
        """Answer that something could not be done."""
        self.reply("refused", {"id": frame.data.get("id"), "why": why})

    def asked(self) -> Collected:
        """Return what this host reported.

        Raises:
            RuntimeError: It was not asked yet.
        """
        if self.known is None:
            raise RuntimeError("this link has not reported its facts yet")
        return self.known

    @property
    def workdir(self) -> str:
        """Where runs are kept on this host.

        Raises:
            RuntimeError: It was not asked yet, and follows no run.
        """
        return self.place or self.asked().facts.workdir


Handlers = Dict[str, Callable[[Frame], None]]


class Duty:
    """A kind of requests that a link answers."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def handlers(self) -> Handlers:
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


def said(error: Exception) -> str:
    """Return an error in the words for a user."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
