"""Notifier of a launch: tells of its run while the hosts do not; a failure to do so is a note."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from runner.control.record.run_store import RunStore
from runner.core.model.plan import Plan
from runner.core.notification import POLL_S, Message, Subject, deliver
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.first_failure import START_REFUSED
from runner.core.outcome.verdict import Verdict
from runner.core.planning.build_plan import notify_part
from runner.core.protocol import events
from runner.core.protocol.events import Event
from runner.core.protocol.timing import NOTIFICATION_TIMEOUT_S
from runner.core.spec import Spec

MARGIN_S = 2.0
KILL_S = 0.5
"""How long the commands of an interrupted launch are waited for, which are killed."""


class LaunchNotifier:
    """Tells of the attempts of one launch, and of its end.

    Large on purpose: it has what is known of the attempt, and the deliveries that are under way.
    """

    def __init__(
        self, spec: Spec, store: RunStore, say: Callable[[str], None], run_flags: str, cwd: str
    ) -> None:
        self._spec = spec
        self._store = store
        self._say = say
        self._run_flags = run_flags
        self._threads: list[threading.Thread] = []
        self._failures = queue.SimpleQueue[tuple[str, str, str]]()  # that are not yet said
        self._cancelled = threading.Event()
        self._seq = itertools.count(1)
        self._subject: Subject | None = None  # None: nobody is to be told
        self._hub = ""
        self._is_stalled = self._hosts_tell = self._teller_ended = False
        self._began_at = time.monotonic()
        self._cwd = cwd

    def begin(self, plan: Plan) -> None:
        """Tell of this attempt from now on."""
        notify = notify_part(self._spec)
        if notify is None:
            return
        nodes = tuple(node_plan.node for node_plan in plan.nodes)
        self._subject = Subject(
            run_id=plan.run_id,
            attempt=plan.attempt,
            notify=replace(notify, nodes=nodes),
            secrets=tuple(secret.reveal() for secret in self._spec.secrets.values()),
            run_flags=self._run_flags,
        )
        self._hub = nodes[0]
        self._is_stalled = self._hosts_tell = self._teller_ended = False

    def on_event(self, event: Event) -> None:
        """Notice a stall, and whether the hosts tell of the rest."""
        self.say_failures()
        body = event.body
        is_hub = event.node == self._hub
        if isinstance(body, events.RelaunchPending) or (
            isinstance(body, events.Detached) and is_hub
        ):
            self._hosts_tell = True
        elif isinstance(body, events.Ended) and is_hub:
            self._teller_ended |= not body.reason.startswith(START_REFUSED)
        elif isinstance(body, events.ProgressResumed):
            self._is_stalled = False
        elif isinstance(body, events.Stalled) and not self._is_stalled:
            self._is_stalled = True
            if self._subject is not None and not self._hosts_tell:
                seconds = time.monotonic() - self._began_at
                self._send(self._subject.stalled(body.seconds, seconds))

    def relaunching(self, upcoming: Plan, reason: str) -> None:
        """Tell that another attempt follows, as this launch has decided."""
        if self._subject is not None:
            nodes = tuple(node_plan.node for node_plan in upcoming.nodes)
            seconds = time.monotonic() - self._began_at
            self._send(self._subject.relaunched(nodes, reason, seconds))

    def ended(self, verdict: Verdict, diagnosis: Diagnosis | None) -> None:
        """Tell of the end, unless a host has."""
        if self._subject is not None and not (self._hosts_tell and self._teller_ended):
            message = self._subject.ended(
                verdict.state,
                verdict.exit_code,
                verdict.seconds,
                verdict.first_failure,
                diagnosis.meaning if diagnosis else "",
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
                break
            time.sleep(POLL_S)
        self.say_failures()

    def say_failures(self) -> None:
        """Say and record which notifications have failed since the last time."""
        while not self._failures.empty():
            target, reason, event = self._failures.get_nowait()
            subject, body = self._subject, events.NotificationFailed(target, reason, event)
            self._say(f"note: {body.text}")
            if subject is not None:
                times = (time.time(), time.monotonic())
                where = (subject.run_id, "", subject.attempt, next(self._seq))
                self._store.append(Event(*where, *times, body))

    def _send(self, message: Message) -> None:
        """Send in a thread: neither the run nor its console waits."""
        secrets = {name: secret.reveal() for name, secret in self._spec.secrets.items()}
        environ = {**os.environ, **secrets}

        def send() -> None:
            failed = deliver(
                self._spec.notify,
                message,
                environ,
                self._cwd,
                tuple(secrets.values()),
                self._cancelled.is_set,
            )
            for target, reason in failed:
                self._failures.put((target, reason, message["event"]))

        thread = threading.Thread(target=send, daemon=True, name="notify")
        self._threads.append(thread)
        thread.start()
