"""What follows an attempt that failed, for somebody who only joined the run."""

from __future__ import annotations

import contextlib
import time

from runner.control.attempt.monitor import Watch
from runner.core.errors import Interrupted, NotReady
from runner.core.model.run_info import present
from runner.core.planning.build_plan import Plan
from runner.workflows.discovery import Hosts, Recorded, Run

ANNOUNCE_S = 15.0
"""How long a launch may take to say that another attempt follows one that failed."""

BEGIN_S = 30.0
"""How long that attempt may take to begin, from the last word of it."""

LOOK_S = 0.5
REACH_S = 10.0
"""So often hosts without a connection are tried again."""


class Onward:
    """The search for the attempt after one.

    Attributes:
        run: The run as its hosts told of it last.
        promised: Whether another attempt was announced.
    """

    def __init__(self, hosts: Hosts, run: Run, plan: Plan) -> None:
        self.run = run
        self.promised = False
        self._hosts, self._plan = hosts, plan
        self._console = hosts.contact.console

    @property
    def waits(self) -> bool:
        """Whether its launch is about to start it once more."""
        return any(each.waits for each in present(self.run.seen).values())

    def find(self, watch: Watch, *, failed: bool, over: bool) -> Recorded | None:
        """Return what is on record of the attempt that follows; None for none.

        Args:
            watch: That over the attempt.
            failed: Whether it did.
            over: Whether it had ended before anybody watched.

        Raises:
            Interrupted: By a signal, once another attempt is promised.
        """
        self.promised = bool(watch.accord.onward)
        if failed and not self.promised and not watch.accord.decides and not watch.interrupted:
            with contextlib.suppress(Interrupted):  # who does not want to wait, wants the verdict
                self._await_word(0.0 if over else ANNOUNCE_S)
        if not self.promised:
            return None
        try:
            with self._hosts.quietly():
                return self._begun()
        except Interrupted as error:
            what = f"left run {self.run.run_id}; another attempt of it is about to begin"
            raise Interrupted(error.exit_code, what) from None

    def _await_word(self, seconds: float) -> None:
        if not self.run.info.relaunches:
            return
        until = time.monotonic() + seconds
        self._console.phase("waiting for word of another attempt")
        with self._hosts.quietly():
            while not self.waits and self.run.info.attempt == self._plan.attempt:
                if time.monotonic() >= until:
                    return
                self._look()
        self.promised = True
        if self.waits:
            self._console.say(f"its launch, {self.run.info.by}, is about to start it once more")

    def _look(self) -> None:
        self._hosts.contact.wait(LOOK_S)
        with contextlib.suppress(NotReady):
            self.run = self._hosts.one(self.run.run_id)

    def _begun(self) -> Recorded | None:
        reach_at = time.monotonic()  # at once: those that stood by had no connection for long
        until = time.monotonic() + BEGIN_S
        while time.monotonic() < until:
            if time.monotonic() >= reach_at:
                self._hosts.reach()
                self._console.phase("waiting for the next attempt")
                reach_at = time.monotonic() + REACH_S
            self._look()
            if self.run.info.attempt > self._plan.attempt:
                with contextlib.suppress(NotReady):
                    recorded = self._hosts.record(self.run)
                    self._await_all(recorded.plan, until)
                    return recorded
            elif self.waits:
                until = time.monotonic() + BEGIN_S
        self._console.say("no other attempt was seen to begin")
        return None

    def _await_all(self, plan: Plan, until: float) -> None:
        """Give every host of the attempt time to learn of it: until then it denies the run."""
        wanted = {share.node for share in plan.nodes}
        while time.monotonic() < until:
            seen = self.run.seen
            if wanted <= {name for name in seen if seen[name].info.attempt >= plan.attempt}:
                return
            self._look()
