"""Push requests: take a release from the controller, and store it."""

from __future__ import annotations

import errno
import os
import zlib
from typing import Optional

from runner.core.wire.codec import Frame
from runner.host.agent.server import RequestHandler, one_step
from runner.host.process.event_loop import Steps, run_steps
from runner.host.storage import release_store
from runner.host.storage.release_writer import ReleaseWriter


class Handler(RequestHandler):
    """The releases that one controller pushes, and a pin on the one that a run is about to use."""

    _writer: Optional[ReleaseWriter] = None
    _pin_fd: Optional[int] = None

    @one_step
    def on_offer(self, frame: Frame) -> None:
        """Reply with the id of the disk, which is the same on all hosts that share it.

        No file of a release is touched before `manifest`, which one host of each disk gets.
        """
        self.context.answer(frame, "store", store_id=release_store.store_id(self.context.workdir))

    def on_manifest(self, frame: Frame) -> Steps:
        """Reply that the release is stored, or which files of the manifest are missing.

        `missing` are indices into the manifest's files.
        """
        self._abort()
        workdir = self.context.workdir
        writer = ReleaseWriter(workdir, zlib.decompress(frame.payload))
        damage = yield from release_store.find_damage(workdir, writer.name)
        if not damage and self.pin(writer.name):
            self.context.answer(frame, "stored", new=False)
            return
        self._writer = writer
        yield from self._abort_on_error(self._begin(frame, writer))

    def _begin(self, frame: Frame, writer: ReleaseWriter) -> Steps:
        workdir = self.context.workdir
        yield from writer.begin()
        if writer.space_error:  # remove what `keep` allows now rather than at the end
            yield from release_store.prune(workdir, int(frame.data["keep"]), writer.name)
        if writer.space_error:
            raise OSError(errno.ENOSPC, writer.space_error, workdir)
        indices = {file.path: index for index, file in enumerate(writer.manifest.files)}
        missing = [indices[file.path] for file in writer.missing]
        self.context.answer(frame, "missing", missing=missing)

    def on_chunk(self, frame: Frame) -> Steps:
        """Take the next bytes of the stream of missing files."""
        if self._writer is not None:
            is_compressed = frame.data.get("compressed")
            data = zlib.decompress(frame.payload) if is_compressed else frame.payload
            yield from self._abort_on_error(self._writer.write(data))

    def on_finish(self, frame: Frame) -> Steps:
        """Store the release, which is complete, and remove old ones but `keep`."""
        if self._writer is None:
            raise RuntimeError("no release is being pushed")
        yield from self._abort_on_error(self._finish(frame, self._writer))

    def _finish(self, frame: Frame, writer: ReleaseWriter) -> Steps:
        yield from writer.finish()
        self._writer = None
        keep = int(frame.data["keep"])
        yield from release_store.prune(self.context.workdir, keep, writer.name)
        if not self.pin(writer.name):
            raise ValueError("another deploy removed it at once; raise deploy.keep")
        self.context.answer(frame, "stored", new=True)
        self.context.cache_code()

    @one_step
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

    def close(self) -> None:
        """Leave nothing of an unfinished release."""
        self.context.files.submit(self._abort)

    def _abort(self) -> None:
        if self._writer is not None:
            run_steps(self._writer.abort())
            self._writer = None

    def _abort_on_error(self, steps: Steps) -> Steps:
        """Remove the unfinished release if anything goes wrong; `close` does when we end."""
        try:
            yield from steps
        except Exception:
            if self._writer is not None:
                yield from self._writer.abort()
                self._writer = None
            raise
