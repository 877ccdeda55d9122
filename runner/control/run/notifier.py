"""Notifier of a launch: tells of its run while the hosts do not; a failure to do so is a note."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

from runner.control.record.run_store import RunStore
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.spec import Spec
from runner.core.wire import events
from runner.core.wire.events import Event
from runner.core.wire.notification import POLL_S, Message, Teller
from runner.core.wire.plan import Plan
from runner.core.wire.timing import NOTIFICATION_TIMEOUT_S

MARGIN_S = 2.0


class LaunchNotifier(Teller):
    """Tells of the stalls of one launch, and of its end."""

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        store: RunStore,
        say: Callable[[str], None],
        run_flags: str,
        cwd: str,
    ) -> None:
        secrets = {name: secret.reveal() for name, secret in spec.secrets.items()}
        environ = {**os.environ, **secrets}
        super().__init__(plan.nodes[0].order, environ, cwd, "launch", run_flags)
        self._store = store
        self._say = say
        self._threads: list[threading.Thread] = []
        self._cancelled = threading.Event()
        self._seq = itertools.count(1)

    def begin(self, plan: Plan) -> None:
        self.order = plan.nodes[0].order
        self._is_stalled = False
        self._seen: set[type] = set()  # kinds of events of the host that tells if nobody else does

    @property
    def _hosts_tell(self) -> bool:
        return not self._seen.isdisjoint((events.RelaunchPending, events.Detached))

    def on_event(self, event: Event) -> None:
        """Notice a stall, and whether the hosts tell of the rest."""
        body = event.body
        if event.node == self.order.node or isinstance(body, events.RelaunchPending):
            self._seen.add(type(body))
        if isinstance(body, events.ProgressResumed):
            self._is_stalled = False
        elif isinstance(body, events.Stalled):
            if not (self._is_stalled or self._hosts_tell):
                self.tell("running", stalled_s=body.seconds)
            self._is_stalled = True

    def ended(self, verdict: Verdict, diagnosis: Diagnosis | None) -> None:
        """Tell of the end, unless a host has."""
        if not (self._hosts_tell and events.Ended in self._seen):
            self.tell(
                verdict.state,
                verdict.exit_code,
                verdict.first_failure,
                meaning=diagnosis.meaning if diagnosis else "",
                seconds=verdict.seconds,
            )

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Wait for what is under way, till the deadline."""
        deadline = time.monotonic() + NOTIFICATION_TIMEOUT_S + MARGIN_S
        while any(thread.is_alive() for thread in self._threads) and not self._cancelled.is_set():
            if interrupted() or time.monotonic() > deadline:
                self._say("note: the rest of the notifications is not waited for")
                self._cancelled.set()  # which kills the commands
            for thread in self._threads:
                thread.join(2 * POLL_S)

    def _send(self, message: Message) -> None:
        def send() -> None:
            for failure in self.deliver(message, self._cancelled.is_set):
                self._say(f"note: {failure.text}")
                event = Event(
                    run_id=message["run_id"],
                    node="",
                    attempt=message["attempt"],
                    seq=next(self._seq),
                    wall=time.time(),
                    mono=time.monotonic(),
                    body=failure,
                )
                self._store.append(event)

        thread = threading.Thread(target=send, daemon=True)  # neither run nor console waits
        self._threads.append(thread)
        thread.start()
