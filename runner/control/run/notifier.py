"""Notifier of a launch: tells of the end of its run; a failure to do so is a note."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record.run_store import RunStore
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.spec import Spec
from runner.core.wire import events
from runner.core.wire.events import Event, TimedEvent
from runner.core.wire.notification import POLL_S, Message, Teller
from runner.core.wire.order import Order
from runner.core.wire.timing import NOTIFICATION_TIMEOUT_S

MARGIN_S = 2.0


class LaunchNotifier:
    """Tells in a thread: neither the run nor the console waits."""

    def __init__(self, store: RunStore, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()

    def tell_end(
        self,
        spec: Spec,
        monitor: AttemptMonitor,
        verdict: Verdict,
        diagnosis: Diagnosis | None,
        run_flags: str,
        cwd: str,
    ) -> None:
        """Run the commands, unless a host has."""
        order = monitor.plan.nodes[0].order
        if order.notify is None or _host_tells(order, monitor.timed_events):
            return
        secrets = {name: secret.reveal() for name, secret in spec.secrets.items()}
        environ = {**os.environ, **secrets}
        teller = Teller(order, order.notify, environ, cwd, "launch", run_flags)
        message = teller.message(
            verdict.state,
            verdict.exit_code,
            verdict.seconds,
            verdict.first_failure,
            diagnosis.meaning if diagnosis else "",
        )
        work = functools.partial(self._deliver, teller, message)
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Wait for the commands, till their deadline."""
        deadline = time.monotonic() + NOTIFICATION_TIMEOUT_S + MARGIN_S
        while self._thread and self._thread.is_alive() and not self._cancelled.is_set():
            if interrupted() or time.monotonic() > deadline:
                self._say("note: the rest of the notifications is not waited for")
                self._cancelled.set()  # which kills the commands
            self._thread.join(2 * POLL_S)

    def _deliver(self, teller: Teller, message: Message) -> None:
        failures = teller.deliver(message, self._cancelled.is_set)
        for seq, failure in enumerate(failures, start=1):
            self._say(f"note: {failure.text}")
            event = Event(
                run_id=message["run_id"],
                node="",
                attempt=message["attempt"],
                seq=seq,
                wall=time.time(),
                mono=time.monotonic(),
                body=failure,
            )
            self._store.append(event)


def _host_tells(order: Order, timed_events: list[TimedEvent]) -> bool:
    """Return whether the first node has ended without a launch, and so has told of that."""
    of_teller = {type(each.event.body) for each in timed_events if each.event.node == order.node}
    is_pending = any(isinstance(each.event.body, events.RelaunchPending) for each in timed_events)
    return events.Ended in of_teller and (is_pending or events.Detached in of_teller)
