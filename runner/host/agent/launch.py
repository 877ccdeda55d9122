"""Launch requests: take the release that a controller pushes, and start guardian and supervisor."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import select
import socket
import time
import zlib
from dataclasses import replace
from typing import Optional

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason, ReasonKind
from runner.host.agent import facts, follow
from runner.host.agent.server import RequestHandler
from runner.host.facts import ports
from runner.host.process.jobs import POLL_S, checkpoint, in_loop, pause
from runner.host.storage import pool
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor import guardian
from runner.host.supervisor.attempt import SupervisorArgs

STARTUP_TIMEOUT_S = 20.0
PREDECESSOR_TIMEOUT_S = 10.0  # for the supervisor of an earlier attempt, a spare's perhaps, to end


class Handler(RequestHandler):
    at_once = frozenset({"chunk", "finish"})
    _stream: Optional["queue.SimpleQueue[Frame]"] = None  # what the push under way is to take

    def on_offer(self, frame: Frame) -> None:
        """Reply with the id of the disk, which is the same on all hosts that share it.

        No file of a release is touched before `manifest`, which one host of each disk gets first.
        """
        self.agent.answer(frame, "store", store_id=pool.store_id(self.agent.workdir))

    def on_manifest(self, frame: Frame) -> None:
        """Reply which contents are missing, if any; take them, and reply that all is stored.

        `missing` are indices into the manifest's files; old releases but `keep` are removed.
        """
        keep = int(frame.data["keep"])
        workdir = self.agent.workdir
        upload = pool.Upload(workdir, zlib.decompress(frame.payload))
        facts_handler: facts.Handler = self.agent.handler("facts")
        try:
            facts_handler.pin(upload.name)  # if only a part of it is missing
            if upload.missing:
                self._receive(frame, upload, keep)
            upload.finish()
        finally:
            self._stream = None
            upload.close()
        if not facts_handler.pin(upload.name):
            raise ValueError("another deploy removed it at once; raise deploy.keep")
        if upload.is_new:
            pool.prune(workdir, keep=keep + 1)
        self.agent.answer(frame, "stored", new=upload.is_new)
        in_loop(self.agent.cache_code)

    def _receive(self, frame: Frame, upload: pool.Upload, keep: int) -> None:
        workdir = self.agent.workdir
        if upload.space_error:  # remove what `keep` allows now rather than at the end
            pool.prune(workdir, keep=keep)
        if upload.space_error:
            raise OSError(errno.ENOSPC, upload.space_error, workdir)
        indices = {file: index for index, file in enumerate(upload.manifest.files)}
        stream: "queue.SimpleQueue[Frame]" = queue.SimpleQueue()
        self._stream = stream
        missing = [indices[file] for file in upload.missing]
        self.agent.answer(frame, "missing", missing=missing)
        while True:
            checkpoint()
            with contextlib.suppress(queue.Empty):
                part = stream.get(timeout=POLL_S)
                if part.kind == "finish":
                    break
                is_compressed = part.data.get("compressed")
                upload.write(zlib.decompress(part.payload) if is_compressed else part.payload)
                self.agent.answer(frame, "taken", bytes=len(part.payload))

    def on_chunk(self, frame: Frame) -> None:
        """Take the next bytes of the stream of missing files; they may come after a refusal."""
        if self._stream is not None:
            self._stream.put(frame)

    def on_finish(self, frame: Frame) -> None:
        if self._stream is None:
            raise RuntimeError("no release is being pushed")
        self._stream.put(frame)

    def on_start(self, frame: Frame) -> None:
        """Start the run.

        The payload is the record of the whole run that every host keeps, its plan and
        configuration; then the shipped tasks, if this host lacks them.
        """
        agent = self.agent
        reported = agent.require_facts()
        order = guardian.with_numeric_hub(decode(Order, frame.data["order"]))
        size = int(frame.data["record_bytes"])
        record = json.loads(zlib.decompress(frame.payload[:size]))
        if frame.data.get("tasks"):
            pool.store_tasks(reported.facts.workdir, frame.data["tasks"], frame.payload[size:])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        run_socket = RunSocket(folder)
        listener = _take(run_socket, order)
        run = follow.FollowedRun(run_socket, order, by_launch=True)
        args = SupervisorArgs(
            folder=folder,
            order=order,
            environ={**reported.environ, **frame.data.get("secrets", {})},
            reserved_ports=reported.reserved,
            token=str(frame.data.get("token", "")).encode(),
            record=record,
            programs=agent.programs,
        )

        def spawn(log_fd: int) -> int:
            """Start guardian and supervisor; return the pipe on which they report."""
            pipe = guardian.spawn(args, listener, log_fd)
            agent.started = run_socket
            os.close(log_fd)
            reported.reserved.close()
            agent.facts = replace(reported, reserved=ports.NO_PORTS)
            follower: follow.Handler = agent.handler("follow")
            follower.end_stream()
            follower.follow(run)  # from now on it can be stopped
            return pipe

        with listener:  # the guardian has it, too, if there is one at the end
            pipe = guardian.prepare(args, lambda log_fd: in_loop(lambda: spawn(log_fd)))
        report = _await_report(pipe)
        if report is not None and report != guardian.READY:
            text = report.decode(errors="replace")
            raise ValueError(text or "its guardian ended without a report")
        agent.answer(frame, "following")
        in_loop(agent.cache_code)
        if report is None:  # it hangs, perhaps with its disk, and may yet begin
            problem = f"no supervisor within {STARTUP_TIMEOUT_S:g} s"
            reason = Reason(ReasonKind.HOST, order.node, detail=problem)
            run.send("stop", reason=encode(reason))


def _take(run_socket: RunSocket, order: Order) -> socket.socket:
    """Take the socket of a run, once the supervisor of an earlier attempt has ended."""
    deadline = time.monotonic() + PREDECESSOR_TIMEOUT_S
    listener = run_socket.take()
    while listener is None and order.attempt and time.monotonic() < deadline:
        pause(POLL_S)
        listener = run_socket.take()
    if listener is None:
        raise ValueError("this run has a supervisor here already")
    return listener


def _await_report(pipe: int) -> Optional[bytes]:
    """Return what the guardian reports, which it writes at once; None if that takes too long."""
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            checkpoint()
            if select.select([pipe], [], [], POLL_S)[0]:
                return os.read(pipe, 65536)
        return None
    finally:
        os.close(pipe)
