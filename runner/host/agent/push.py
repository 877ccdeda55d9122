"""The host's end of a deploy: what is missing is told, taken in, verified, stored."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from typing import Any, Callable, Dict, Iterator, Optional

from runner.core.protocol.frames import Frame
from runner.host.process.job_queue import Steps
from runner.host.storage import release_store
from runner.host.storage.release_writer import Assembly

Reply = Callable[[str, Dict[str, Any]], None]


class Receiving:
    """The releases one controller pushes over one link."""

    def __init__(self, workdir: str, reply: Reply) -> None:
        self._workdir = workdir
        self._reply = reply
        self._assembly: Optional[Assembly] = None
        self._hold: Optional[int] = None

    def offered(self, frame: Frame) -> Steps:
        """A manifest came: say that the release is stored, or what is lacking for it.

        `lacks` names the contents by their place among the manifest's files, and the store, which
        hosts with one disk share.
        """
        self.drop()
        encoded = zlib.decompress(frame.payload)
        assembly = Assembly(self._workdir, encoded)
        there = yield from release_store.verified(self._workdir, assembly.name)
        if there and self.hold(assembly.name):
            self._reply("stored", {"id": frame.data["id"], "new": False})
            return
        self._assembly = assembly
        with self._dropping():
            yield from assembly.begin()
            if assembly.lacks_room:  # what `keep` allows to go goes now, and not at the end
                yield from release_store.prune(
                    self._workdir, int(frame.data["keep"]), assembly.name
                )
            if assembly.lacks_room:
                raise OSError(errno.ENOSPC, assembly.lacks_room, self._workdir)
            place = {file.path: index for index, file in enumerate(assembly.manifest.files)}
            missing = [place[file.path] for file in assembly.missing]
            store = release_store.store_name(self._workdir)
            self._reply("lacks", {"id": frame.data["id"], "store": store, "missing": missing})

    def piece(self, frame: Frame) -> Steps:
        """The next bytes of the stream of missing files."""
        if self._assembly is None:
            return
        data = zlib.decompress(frame.payload) if frame.data.get("z") else frame.payload
        with self._dropping():
            yield from self._assembly.feed(data)

    def finished(self, frame: Frame) -> Steps:
        """Everything came: store the release, and remove old ones but `keep`."""
        if self._assembly is None:
            raise RuntimeError("no release is being pushed")
        with self._dropping():
            yield from self._assembly.finish()
            yield from release_store.prune(
                self._workdir, int(frame.data["keep"]), self._assembly.name
            )
            if not self.hold(self._assembly.name):
                raise ValueError("another deploy removed it at once; raise deploy.keep")
            self._reply("stored", {"id": frame.data["id"], "new": True})
        self._assembly = None

    def hold(self, name: str) -> bool:
        """Keep a release from being removed while this link lives; False when it is gone."""
        if self._hold is not None:
            os.close(self._hold)
        self._hold = release_store.hold(self._workdir, name)
        return self._hold is not None

    def drop(self) -> None:
        """Leave nothing of an unfinished release."""
        if self._assembly is not None:
            self._assembly.abandon()
            self._assembly = None

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        """Remove the unfinished release if anything goes wrong, as when the controller leaves."""
        try:
            yield
        except BaseException:
            self.drop()
            raise
