"""What a link does for a look at the network: it listens, tries to reach others, asks for names."""

from __future__ import annotations

import os
from typing import List, Optional, Tuple

from runner.core.codec import decode, encode
from runner.core.model.network_probe import Contact, Found, Questions, Target
from runner.core.protocol.frames import Frame
from runner.host.agent.handler import Duty, Handlers, Wire
from runner.host.netcheck import name_lookup
from runner.host.netcheck.dialer import reach
from runner.host.netcheck.responder import greet
from runner.host.process.bounded_child import Child, tell

LISTEN_S = 60.0
"""A listener ends by itself after so long, if nobody ended it before."""

REACH_S = 20.0


class Probing(Duty):
    """Requests of `check` about the network; all that may wait does so in children."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._listener: Optional[Child] = None
        self._asked: Optional[Frame] = None
        self._probe: Optional[Frame] = None
        self._reach: Optional[Child] = None
        self._names: Optional[Child] = None

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        return {"listen": self._listen, "probe": self._begin}

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._asked is not None or self._probe is not None

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What the children report by."""
        return tuple(pipe for child in self._children for pipe in child.pipes)

    @property
    def _children(self) -> List[Child]:
        children = (self._listener, self._reach, self._names)
        return [child for child in children if child is not None]

    def advance(self) -> None:
        """See what they say, and pass on what is whole."""
        for child in self._children:
            if child.code is None:
                child.advance()
        if self._asked is not None:
            self._say_where(self._asked)
        if self._probe is not None:
            self._say_what(self._probe)

    def close(self) -> None:
        """End them."""
        for child in self._children:
            child.kill()

    def _listen(self, frame: Frame) -> None:
        if self._listener is not None:
            self._listener.kill()
        node, token = frame.data["node"], str(frame.data["token"]).encode()
        address = frame.data["addresses"][node]
        held, link = self.wire.asked().held.port, os.getpid()
        self._asked = frame
        self._listener = Child(lambda: greet(node, token, address, held, link, tell), LISTEN_S)

    def _say_where(self, frame: Frame) -> None:
        child = self._listener
        assert child is not None  # noqa: S101 (made with the request)
        told = child.told()
        if "ready" not in told and child.code is None:
            return
        self._asked = None
        error = told.get("error", "") if "ready" in told else child.text or "its listener ended"
        where = {"port": told.get("port", 0), "error": error}
        self.wire.reply("listening", {"id": frame.data["id"], **where})

    def _begin(self, frame: Frame) -> None:
        node, token = frame.data["node"], str(frame.data["token"]).encode()
        targets = [decode(Target, each) for each in frame.data["targets"]]
        questions = decode(Questions, frame.data["questions"])

        def done(at: int, contact: Contact) -> None:
            tell(**{str(at): encode(contact)})

        for child in (self._reach, self._names):
            if child is not None:
                child.kill()
        self._probe, self._reach, self._names = frame, None, None
        if targets:
            self._reach = Child(lambda: reach(node, targets, token, done), REACH_S)
        if questions.addresses:
            limit_s = questions.limit_s + 1
            self._names = Child(lambda: name_lookup.look_up(questions, tell), limit_s)

    def _say_what(self, frame: Frame) -> None:
        if any(child is not None and child.code is None for child in (self._reach, self._names)):
            return
        self._probe = None
        if self._reach is not None and self._reach.code and not self._reach.late:
            self.wire.refuse(frame, self._reach.text or f"its child ended with {self._reach.code}")
            return
        contacts = self._reach.told() if self._reach is not None else {}
        found = Found(
            contacts=tuple(decode(Contact, each) for each in contacts.values()),
            names=name_lookup.gathered(self._names.told() if self._names is not None else {}),
        )
        self.wire.reply("probed", {"id": frame.data["id"], "found": encode(found)})
