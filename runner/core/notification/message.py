"""Notification message: what is told at the end of a run, at a relaunch and at a stall, as JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Optional, Tuple

from runner.core.codec import encode
from runner.core.model.plan import Notify
from runner.core.model.results import Failure
from runner.core.notification.target import hide
from runner.core.outcome.first_failure import failure_text
from runner.core.outcome.verdict import STOPPED
from runner.core.text import format_duration, join_some, printable

MESSAGE_VERSION = 1
MAX_NODES = 256  # that are named
MAX_TEXT = 1000  # characters of a reason
LAUNCH = "launch"
"""Who tells, where that is the launch and no host."""


class Occasion(enum.Enum):
    """Why a message is sent."""

    END = "end"  # it succeeded, or a user stopped it
    FAILURE = "failure"  # it ended in any other way
    RELAUNCH = "relaunch"
    STALL = "stall"


@dataclass(frozen=True)
class ToldFailure:
    """The first failure, as a message has it."""

    node: str
    rank: Optional[int]
    reason: str
    meaning: str = ""  # "" if it is not a known failure


@dataclass(frozen=True)
class Message:
    """What is told, large on purpose: a field for each of the JSON, in their order."""

    v: int
    event: Occasion
    run_id: str
    cluster: str
    task: str
    state: str  # of the run: as in its verdict, or "running", "restarting"
    exit_code: Optional[int]  # of the launch; None while it runs
    seconds: float
    attempt: int  # from 0; of a relaunch the one that begins
    nodes: Tuple[str, ...]
    node_count: int
    first_failure: Optional[ToldFailure]
    told_by: str  # "launch", or a node
    text: str  # Slack, Mattermost and others show it
    content: str  # Discord does
    hint: str  # the command that tells more

    def as_data(self, secrets: Iterable[str]) -> Dict[str, Any]:
        """Return it as a JSON object, in which no value of a secret stands."""
        hidden: Dict[str, Any] = _hide(encode(self), tuple(secrets))
        return hidden


def _hide(data: Any, secrets: Tuple[str, ...]) -> Any:
    if isinstance(data, str):
        return hide(data, secrets)
    if isinstance(data, dict):
        return {key: _hide(value, secrets) for key, value in data.items()}
    return [_hide(item, secrets) for item in data] if isinstance(data, (list, tuple)) else data


@dataclass(frozen=True)
class Subject:
    """The run that is told about, and who tells."""

    run_id: str
    attempt: int
    notify: Notify
    told_by: str = LAUNCH
    run_flags: str = ""  # the words that find the run; "" for its id alone

    @property
    def label(self) -> str:
        """The run in words."""
        return f"run {self.run_id} ({self.notify.task} on {self.notify.cluster})"

    def _message(self, event: Occasion, state: str, line: str, verb: str, **fields: Any) -> Message:
        line = printable(line)[:MAX_TEXT]
        return Message(
            v=MESSAGE_VERSION,
            event=event,
            run_id=self.run_id,
            cluster=self.notify.cluster,
            task=self.notify.task,
            state=state,
            attempt=self.attempt,
            nodes=self.notify.nodes[:MAX_NODES],
            node_count=len(self.notify.nodes),
            told_by=self.told_by,
            text=line,
            content=line,
            hint=f"{self.notify.program} {verb} {self.run_flags or f'--run {self.run_id}'}",
            exit_code=fields.get("exit_code"),
            seconds=round(fields["seconds"], 3),
            first_failure=fields.get("first_failure"),
        )

    def ended(
        self, state: str, exit_code: int, seconds: float, failure: Optional[Failure], meaning: str
    ) -> Message:
        """Return the message about the end of the run."""
        by_user = state == STOPPED and exit_code > 128  # noqa: PLR2004 (and a signal)
        event = Occasion.END if by_user or not exit_code else Occasion.FAILURE
        line = f"{self.label} {state} after {format_duration(seconds)}"
        told = None
        if failure is not None:
            line += f": {failure_text(failure)}"
            reason = printable(failure.reason)[:MAX_TEXT]
            told = ToldFailure(failure.node, failure.rank, reason, meaning[:MAX_TEXT])
        verdict = {"exit_code": exit_code, "seconds": seconds, "first_failure": told}
        return self._message(event, state, line, "why", **verdict)

    def relaunched(self, notify: Notify, reason: str, seconds: float) -> Message:
        """Return the message about the attempt that follows this one, on the nodes of `notify`."""
        where = join_some(notify.nodes)
        line = f"{self.label} is relaunched as attempt {self.attempt + 2} on {where}: {reason}"
        message = self._message(Occasion.RELAUNCH, "restarting", line, "attach", seconds=seconds)
        names, count = notify.nodes[:MAX_NODES], len(notify.nodes)
        return replace(message, attempt=self.attempt + 1, nodes=names, node_count=count)

    def stalled(self, stalled_s: float, seconds: float) -> Message:
        """Return the message about a run in which no rank has made progress for a while."""
        line = f"{self.label} hangs: no rank has made progress for {stalled_s:.0f} s"
        return self._message(Occasion.STALL, "running", line, "stacks", seconds=seconds)
