"""Push receiver: takes a release from the controller, verifies it and stores it."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from typing import Any, Callable, Dict, Iterator, Optional

from runner.core.protocol.frames import Frame
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler
from runner.host.process.job_queue import Steps
from runner.host.storage import release_store
from runner.host.storage.release_writer import ReleaseWriter

Reply = Callable[[str, Dict[str, Any]], None]


class Handler(RequestHandler):
    """Requests of a push, and the pin on the release that a run is about to use."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._receiver = PushReceiver(context.workdir, context.reply)
        self.pin = self._receiver.pin

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
        jobs, receiver = self.context.jobs, self._receiver
        return {
            "manifest": lambda frame: jobs.add(frame, receiver.on_manifest(frame)),
            "chunk": lambda frame: jobs.add(frame, receiver.on_chunk(frame)),
            "finish": lambda frame: jobs.add(frame, receiver.on_finish(frame)),
            "abort_push": lambda _: receiver.abort(),
        }

    def close(self) -> None:
        """Leave nothing of an unfinished release."""
        self._receiver.abort()


class PushReceiver:
    """The releases that one controller pushes over one connection."""

    def __init__(self, workdir: str, reply: Reply) -> None:
        self._workdir = workdir
        self._reply = reply
        self._writer: Optional[ReleaseWriter] = None
        self._pin_fd: Optional[int] = None

    def on_manifest(self, frame: Frame) -> Steps:
        """Reply that the release is stored, or which files of the manifest are missing.

        `missing` are indices into the manifest's files; `store_id` is the same on all hosts that
        share the disk.
        """
        self.abort()
        manifest_bytes = zlib.decompress(frame.payload)
        writer = ReleaseWriter(self._workdir, manifest_bytes)
        is_stored = yield from release_store.verify_content(self._workdir, writer.name)
        if is_stored and self.pin(writer.name):
            self._reply("stored", {"id": frame.data["id"], "new": False})
            return
        self._writer = writer
        with self._abort_on_error():
            yield from writer.begin()
            if writer.space_error:  # remove what `keep` allows now rather than at the end
                yield from release_store.prune(self._workdir, int(frame.data["keep"]), writer.name)
            if writer.space_error:
                raise OSError(errno.ENOSPC, writer.space_error, self._workdir)
            indices = {file.path: index for index, file in enumerate(writer.manifest.files)}
            missing = [indices[file.path] for file in writer.missing]
            store_id = release_store.store_id(self._workdir)
            self._reply(
                "missing", {"id": frame.data["id"], "store_id": store_id, "missing": missing}
            )

    def on_chunk(self, frame: Frame) -> Steps:
        """Take the next bytes of the stream of missing files."""
        if self._writer is None:
            return
        data = zlib.decompress(frame.payload) if frame.data.get("compressed") else frame.payload
        with self._abort_on_error():
            yield from self._writer.write(data)

    def on_finish(self, frame: Frame) -> Steps:
        """Store the release, which is complete, and remove old ones but `keep`."""
        if self._writer is None:
            raise RuntimeError("no release is being pushed")
        with self._abort_on_error():
            yield from self._writer.finish()
            yield from release_store.prune(
                self._workdir, int(frame.data["keep"]), self._writer.name
            )
            if not self.pin(self._writer.name):
                raise ValueError("another deploy removed it at once; raise deploy.keep")
            self._reply("stored", {"id": frame.data["id"], "new": True})
        self._writer = None

    def pin(self, name: str) -> bool:
        """Keep a release from being removed while this agent lives; return False if it is gone."""
        if self._pin_fd is not None:
            os.close(self._pin_fd)
        self._pin_fd = release_store.pin(self._workdir, name)
        return self._pin_fd is not None

    def abort(self) -> None:
        """Leave nothing of an unfinished release."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    @contextlib.contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        """Remove the unfinished release if anything goes wrong, as when the controller leaves."""
        try:
            yield
        except BaseException:
            self.abort()
            raise
