"""Follow the files of one node by offset.

One outstanding read per file, so that unread output stays on its host and a stop never queues
behind it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from runner.control.rpc.session import Session
from runner.core.planning.build_plan import NodePlan
from runner.core.protocol.events import Event, RankStarted, parse
from runner.core.protocol.paths import PROGRAM, STACKS, STREAMS, rank_source

CHUNK = 256 << 10


@dataclass
class _File:
    """One followed file: how far we have it, and whether we have all of it."""

    source: str
    stream: str
    offset: int = 0
    begun: bool = False
    done: bool = False


class Follower:
    """The files of one node in one attempt.

    Args:
        share: The node's share of the plan.
        sink: Takes (source, stream, offset, bytes) of the logs, in order per file.
        logs: Whether to follow the logs too, or the events only.
        begin: Where the logs of ranks and the program begin: `tail` lines before their end, or
            `since` so many seconds ago; empty for the first byte.
        ranks: The ranks whose logs are wanted; None for all logs there are. Which of them the
            node has, is known by the plan, or learned from the events where torch decides.
    """

    def __init__(
        self,
        share: NodePlan,
        sink: Callable[[str, str, int, bytes], None],
        *,
        logs: bool = True,
        begin: Mapping[str, float] = MappingProxyType({}),
        ranks: Container[int] | None = None,
    ) -> None:
        self._attempt = share.order.attempt
        self._sink = sink
        self._begin = begin
        self._events = _File("events", "")
        self._logs, self._ranks = logs, ranks
        chosen = [rank for rank in share.ranks if self._wanted(rank)]
        sources = [*([PROGRAM] if ranks is None else []), *map(rank_source, chosen)]
        wanted = list(itertools.product(sources, STREAMS))
        if ranks is None:
            wanted.append((STACKS, "out"))
        self._files = [self._events, *(_File(*each) for each in wanted if logs)]
        self._asked: dict[int, _File] = {}
        self._held_back: list[_File] = []
        self._torn = b""

    @property
    def done(self) -> bool:
        """Whether every file is here to its end."""
        return all(file.done for file in self._files)

    def start(self, session: Session) -> None:
        """Ask for every file, from where we are; also after a new link."""
        self._asked.clear()
        self._held_back.clear()
        for file in self._files:
            if not file.done:
                self._ask(session, file)

    def take(
        self,
        session: Session,
        number: int,
        offset: int,
        chunk: bytes,
        *,
        eof: bool,
        hold_back: bool,
    ) -> Iterator[Event]:
        """Take an answer; yield the events in it.

        Args:
            session: Where to ask on.
            number: The id of the read that is answered.
            offset: Where in the file the chunk begins.
            chunk: What was read.
            eof: Whether the file ends here.
            hold_back: Whether to ask for more logs only at `resume`.
        """
        file = self._asked.pop(number, None)
        if file is None:
            return
        file.offset = offset + len(chunk)
        file.begun, file.done = True, eof
        if file is self._events:
            for event in self._parse(chunk):
                self._learn(session, event)
                yield event
        elif chunk:
            self._sink(file.source, file.stream, offset, chunk)
        if not eof and hold_back and file is not self._events:
            self._held_back.append(file)
        elif not eof:
            self._ask(session, file)

    def _wanted(self, rank: int) -> bool:
        return self._ranks is None or rank in self._ranks

    def _learn(self, session: Session, event: Event) -> None:
        """Follow the logs of a rank that nobody knew to be there."""
        body = event.body
        if not isinstance(body, RankStarted) or not self._logs or not self._wanted(body.rank):
            return
        source = rank_source(body.rank)
        if all(file.source != source for file in self._files):
            for stream in STREAMS:
                self._files.append(_File(source, stream))
                self._ask(session, self._files[-1])

    def again(self) -> None:
        """Take it that the node came back: every file may go on where it ended."""
        for file in self._files:
            file.done = False

    def resume(self, session: Session) -> None:
        """Ask again for what was held back."""
        held, self._held_back = self._held_back, []
        for file in held:
            self._ask(session, file)

    def _ask(self, session: Session, file: _File) -> None:
        where: dict[str, Any] = {
            "source": file.source,
            "stream": file.stream,
            "attempt": self._attempt,
        }
        if file is not self._events and file.source != STACKS and not file.begun:
            where.update(self._begin)
        number = session.request("read", {**where, "offset": file.offset, "n": CHUNK})
        self._asked[number] = file

    def _parse(self, chunk: bytes) -> Iterator[Event]:
        *lines, self._torn = (self._torn + chunk).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # torn by a full disk or a power cut
                event = parse(line.decode())
                if event.attempt == self._attempt:
                    yield event
