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
from runner.core.wire.notification import POLL_S, Message, Subject, deliver
from runner.core.wire.plan import Plan
from runner.core.wire.states import ReasonKind
from runner.core.wire.timing import NOTIFICATION_TIMEOUT_S

MARGIN_S = 2.0
KILL_S = 0.5
"""How long the commands of an interrupted launch are waited for, which are killed."""


class LaunchNotifier:
    """Tells of the stalls of one launch, and of its end."""

    def __init__(
        self, spec: Spec, store: RunStore, say: Callable[[str], None], run_flags: str, cwd: str
    ) -> None:
        self._spec = spec
        self._store = store
        self._say = say
        self._run_flags = run_flags
        self._cwd = cwd
        self._secrets = {name: secret.reveal() for name, secret in spec.secrets.items()}
        self._threads: list[threading.Thread] = []
        self._cancelled = threading.Event()
        self._seq = itertools.count(1)
        self._began_at = time.monotonic()
        self._subject: Subject | None = None  # None: nobody is to be told

    def begin(self, plan: Plan) -> None:
        """Tell of this attempt from now on."""
        self._hub = plan.nodes[0].node
        self._is_stalled = False
        self._hosts_tell = False
        self._hub_has_ended = False
        if notify := plan.nodes[0].order.notify:
            self._subject = Subject(
                run_id=plan.run_id,
                attempt=plan.attempt,
                notify=notify,
                secrets=tuple(self._secrets.values()),
                run_flags=self._run_flags,
            )

    def on_event(self, event: Event) -> None:
        """Notice a stall, and whether the hosts tell of the rest."""
        body = event.body
        is_hub = event.node == self._hub
        if isinstance(body, events.RelaunchPending):
            self._hosts_tell = True
        elif isinstance(body, events.Detached):
            self._hosts_tell |= is_hub
        elif isinstance(body, events.Ended):
            refused = body.reason is not None and body.reason.kind is ReasonKind.START
            self._hub_has_ended |= is_hub and not refused
        elif isinstance(body, events.ProgressResumed):
            self._is_stalled = False
        elif isinstance(body, events.Stalled) and not self._is_stalled:
            self._is_stalled = True
            if self._subject and not self._hosts_tell:
                seconds = time.monotonic() - self._began_at
                self._send(self._subject.stalled(body.seconds, seconds))

    def ended(self, verdict: Verdict, diagnosis: Diagnosis | None) -> None:
        """Tell of the end, unless a host has."""
        if self._subject and not (self._hosts_tell and self._hub_has_ended):
            message = self._subject.ended(
                verdict.state,
                verdict.exit_code,
                verdict.seconds,
                reason=verdict.first_failure,
                meaning=diagnosis.meaning if diagnosis else "",
            )
            self._send(message)

    def finish(self, interrupted: Callable[[], bool]) -> None:
        """Wait for what is under way, till the deadline."""
        deadline = time.monotonic() + NOTIFICATION_TIMEOUT_S + MARGIN_S
        while any(thread.is_alive() for thread in self._threads):
            if interrupted() or time.monotonic() > deadline:
                self._say("note: the rest of the notifications is not waited for")
                self._cancelled.set()  # which kills the commands
                killed_by = time.monotonic() + KILL_S
                for thread in self._threads:
                    thread.join(max(0.0, killed_by - time.monotonic()))
                return
            time.sleep(POLL_S)

    def _send(self, message: Message) -> None:
        """Deliver in a thread: neither the run nor its console waits."""

        def send() -> None:
            environ = {**os.environ, **self._secrets}
            secrets = tuple(self._secrets.values())
            targets = self._spec.notify
            is_cancelled = self._cancelled.is_set
            failed = deliver(targets, message, environ, self._cwd, secrets, is_cancelled)
            for target, reason in failed:
                body = events.NotificationFailed(target, reason, message["event"])
                self._say(f"note: {body.text}")
                seq = next(self._seq)
                times = (time.time(), time.monotonic())
                event = Event(message["run_id"], "", message["attempt"], seq, *times, body)
                self._store.append(event)

        thread = threading.Thread(target=send, daemon=True)
        self._threads.append(thread)
        thread.start()
