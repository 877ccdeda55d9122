"""Push requests: take a release from the controller, verify it and store it."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from typing import Iterator, Optional

from runner.core.protocol.frames import Frame
from runner.host.agent.server import RequestHandler
from runner.host.process.event_loop import Steps
from runner.host.storage import release_store
from runner.host.storage.release_writer import ReleaseWriter


class Handler(RequestHandler):
    """The releases that one controller pushes, and a pin on the one that a run is about to use."""

    _writer: Optional[ReleaseWriter] = None
    _pin_fd: Optional[int] = None

    def on_manifest(self, frame: Frame) -> Steps:
        """Reply that the release is stored, or which files of the manifest are missing.

        `missing` are indices into the manifest's files; `store_id` is the same on all hosts that
        share the disk.
        """
        self.close()
        workdir = self.context.workdir
        writer = ReleaseWriter(workdir, zlib.decompress(frame.payload))
        is_stored = yield from release_store.verify_content(workdir, writer.name)
        if is_stored and self.pin(writer.name):
            self.context.answer(frame, "stored", new=False)
            return
        self._writer = writer
        with self._abort_on_error():
            yield from writer.begin()
            if writer.space_error:  # remove what `keep` allows now rather than at the end
                yield from release_store.prune(workdir, int(frame.data["keep"]), writer.name)
            if writer.space_error:
                raise OSError(errno.ENOSPC, writer.space_error, workdir)
            indices = {file.path: index for index, file in enumerate(writer.manifest.files)}
            missing = [indices[file.path] for file in writer.missing]
            store_id = release_store.store_id(workdir)
            self.context.answer(frame, "missing", store_id=store_id, missing=missing)

    def on_chunk(self, frame: Frame) -> Steps:
        """Take the next bytes of the stream of missing files."""
        if self._writer is None:
            return
        data = zlib.decompress(frame.payload) if frame.data.get("compressed") else frame.payload
        with self._abort_on_error():
            yield from self._writer.write(data)

    def on_finish(self, frame: Frame) -> Steps:
        """Store the release, which is complete, and remove old ones but `keep`."""
        writer = self._writer
        if writer is None:
            raise RuntimeError("no release is being pushed")
        with self._abort_on_error():
            yield from writer.finish()
            keep = int(frame.data["keep"])
            yield from release_store.prune(self.context.workdir, keep, writer.name)
            if not self.pin(writer.name):
                raise ValueError("another deploy removed it at once; raise deploy.keep")
            self.context.answer(frame, "stored", new=True)
        self._writer = None

    def on_abort_push(self, _: Frame) -> None:
        """Leave nothing of an unfinished release."""
        self.close()

    def pin(self, name: str) -> bool:
        """Keep a release from being removed while this agent lives; return False if it is gone."""
        if self._pin_fd is not None:
            os.close(self._pin_fd)
        self._pin_fd = release_store.pin(self.context.workdir, name)
        return self._pin_fd is not None

    def close(self) -> None:
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
            self.close()
            raise
