"""Push requests: take a release from the controller, and store it."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import zlib
from typing import Optional

from runner.core.wire.codec import Frame
from runner.host.agent.server import RequestHandler
from runner.host.process.jobs import POLL_S, checkpoint, in_loop
from runner.host.storage import release_store
from runner.host.storage.release_writer import ReleaseWriter


class Handler(RequestHandler):
    """The releases that one controller pushes, and a pin on the one that a run is about to use."""

    at_once = frozenset({"chunk", "finish"})
    _stream: Optional["queue.SimpleQueue[Frame]"] = None  # what the push under way is to take
    _pin_fd: Optional[int] = None

    def on_offer(self, frame: Frame) -> None:
        """Reply with the id of the disk, which is the same on all hosts that share it.

        No file of a release is touched before `manifest`, which one host of each disk gets.
        """
        self.context.answer(frame, "store", store_id=release_store.store_id(self.context.workdir))

    def on_manifest(self, frame: Frame) -> None:
        """Reply that the release is stored, or which files are missing; then take and store them.

        `missing` are indices into the manifest's files; old releases but `keep` are removed.
        """
        workdir = self.context.workdir
        writer = ReleaseWriter(workdir, zlib.decompress(frame.payload))
        if not release_store.find_damage(workdir, writer.name) and self.pin(writer.name):
            self.context.answer(frame, "stored", new=False)
            return
        try:
            self._receive(frame, writer)
        except BaseException:
            writer.abort()
            raise
        finally:
            self._stream = None
        release_store.prune(workdir, int(frame.data["keep"]), writer.name)
        if not self.pin(writer.name):
            raise ValueError("another deploy removed it at once; raise deploy.keep")
        self.context.answer(frame, "stored", new=True)
        in_loop(self.context.cache_code)

    def _receive(self, frame: Frame, writer: ReleaseWriter) -> None:
        workdir = self.context.workdir
        writer.begin()
        if writer.space_error:  # remove what `keep` allows now rather than at the end
            release_store.prune(workdir, int(frame.data["keep"]), writer.name)
        if writer.space_error:
            raise OSError(errno.ENOSPC, writer.space_error, workdir)
        indices = {file.path: index for index, file in enumerate(writer.manifest.files)}
        stream: "queue.SimpleQueue[Frame]" = queue.SimpleQueue()
        self._stream = stream
        missing = [indices[file.path] for file in writer.missing]
        self.context.answer(frame, "missing", missing=missing)
        while True:
            checkpoint()
            with contextlib.suppress(queue.Empty):
                part = stream.get(timeout=POLL_S)
                if part.kind == "finish":
                    break
                is_compressed = part.data.get("compressed")
                writer.write(zlib.decompress(part.payload) if is_compressed else part.payload)
                self.context.answer(frame, "taken", bytes=len(part.payload))
        writer.finish()

    def on_chunk(self, frame: Frame) -> None:
        """Take the next bytes of the stream of missing files; they may come after a refusal."""
        if self._stream is not None:
            self._stream.put(frame)

    def on_finish(self, frame: Frame) -> None:
        """Take the end of the stream."""
        if self._stream is None:
            raise RuntimeError("no release is being pushed")
        self._stream.put(frame)

    def on_adopt(self, frame: Frame) -> None:
        """Take the word of the host that has stored a release on our common disk.

        Reply that it is absent if the disk is another one, despite its id.
        """
        name = frame.data["release"]
        if release_store.has_release(self.context.workdir, name) and self.pin(name):
            self.context.answer(frame, "stored", new=False)
        else:
            self.context.answer(frame, "absent")

    def pin(self, name: str) -> bool:
        """Keep a release from being removed while this agent lives; return False if it is gone."""
        if self._pin_fd is not None:
            os.close(self._pin_fd)
        self._pin_fd = release_store.pin(self.context.workdir, name)
        return self._pin_fd is not None
