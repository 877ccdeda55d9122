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
from runner.host.storage import pool


class Handler(RequestHandler):
    """The releases that one controller pushes, and a pin on the one that a run is about to use."""

    at_once = frozenset({"chunk", "finish"})
    _stream: Optional["queue.SimpleQueue[Frame]"] = None  # what the push under way is to take
    _pin_fd: Optional[int] = None

    def on_offer(self, frame: Frame) -> None:
        """Reply with the id of the disk, which is the same on all hosts that share it.

        No file of a release is touched before `manifest`, which one host of each disk gets first.
        """
        self.context.answer(frame, "store", store_id=pool.store_id(self.context.workdir))

    def on_manifest(self, frame: Frame) -> None:
        """Reply which contents are missing, if any; take them, and reply that all is stored.

        `missing` are indices into the manifest's files; old releases but `keep` are removed.
        """
        keep = int(frame.data["keep"])
        upload = pool.Upload(self.context.workdir, zlib.decompress(frame.payload))
        try:
            self.pin(upload.name)  # if only a part of it is missing
            if upload.missing:
                self._receive(frame, upload, keep)
            upload.finish()
        finally:
            self._stream = None
            upload.close()
        if not self.pin(upload.name):
            raise ValueError("another deploy removed it at once; raise deploy.keep")
        if upload.is_new:
            pool.prune(self.context.workdir, keep=keep + 1)
        self.context.answer(frame, "stored", new=upload.is_new)
        in_loop(self.context.cache_code)

    def _receive(self, frame: Frame, upload: pool.Upload, keep: int) -> None:
        workdir = self.context.workdir
        if upload.space_error:  # remove what `keep` allows now rather than at the end
            pool.prune(workdir, keep=keep)
        if upload.space_error:
            raise OSError(errno.ENOSPC, upload.space_error, workdir)
        indices = {file: index for index, file in enumerate(upload.manifest.files)}
        stream: "queue.SimpleQueue[Frame]" = queue.SimpleQueue()
        self._stream = stream
        missing = [indices[file] for file in upload.missing]
        self.context.answer(frame, "missing", missing=missing)
        while True:
            checkpoint()
            with contextlib.suppress(queue.Empty):
                part = stream.get(timeout=POLL_S)
                if part.kind == "finish":
                    break
                is_compressed = part.data.get("compressed")
                upload.write(zlib.decompress(part.payload) if is_compressed else part.payload)
                self.context.answer(frame, "taken", bytes=len(part.payload))

    def on_chunk(self, frame: Frame) -> None:
        """Take the next bytes of the stream of missing files; they may come after a refusal."""
        if self._stream is not None:
            self._stream.put(frame)

    def on_finish(self, frame: Frame) -> None:
        """Take the end of the stream."""
        if self._stream is None:
            raise RuntimeError("no release is being pushed")
        self._stream.put(frame)

    def pin(self, name: str) -> bool:
        """Keep a release from being removed while this agent lives; return False if it is gone."""
        if self._pin_fd is not None:
            os.close(self._pin_fd)
        self._pin_fd = pool.pin(self.context.workdir, name)
        return self._pin_fd is not None
