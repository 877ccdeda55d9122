"""Boot of our processes: the code archive that a host may keep, and their descriptors.

The archive is a checksum, then a dict by `marshal`, which Python has at hand before anything is
imported. Its modules are there as source, or compiled for one version of Python.

A supervisor has a descriptor per host of the run, a controller up to three; the usual soft limit
(RLIMIT_NOFILE) is 1024. Programs that use select(2) need one no higher, so they get the one we had.
"""

from __future__ import annotations

import contextlib
import marshal
import resource
import zlib
from types import CodeType
from typing import Dict, List, Mapping, Optional, Tuple

FOLDER = "code"
"""The folder of the usual workdir in which hosts keep archives, each by its hash and its key."""

SOURCE = ""
"""The key of an archive of sources; a compiled one has that of the version: its magic number."""


class Archive:
    """What an archive holds: modules of one `key`, and programs of ours by that of a file.

    Of each module there is whether it is a package, and its compressed source or code.
    """

    def __init__(
        self, key: str, modules: Dict[str, Tuple[bool, bytes]], programs: Dict[str, bytes]
    ) -> None:
        self.key = key
        self.modules = modules
        self.programs = programs

    def pack(self) -> bytes:
        content = marshal.dumps(vars(self), 2)
        return b"%08x" % zlib.crc32(content) + content

    def compiled(self, key: str) -> Archive:
        """Return it for hosts with this version of Python, whose key it is, and for no others."""
        if self.key == key:
            return self
        modules = {}
        for name, (is_package, blob) in self.modules.items():
            file = f"{name.replace('.', '/')}.py"
            code = compile(zlib.decompress(blob), file, "exec", dont_inherit=True)
            modules[name] = (is_package, code_blob(code))
        return Archive(key, modules, self.programs)


def unpack(data: bytes) -> Archive:
    return Archive(**marshal.loads(memoryview(data)[8:]))  # noqa: S302 (our own)


def code_blob(code: Optional[CodeType]) -> bytes:
    return zlib.compress(marshal.dumps(code))


class HostCode:
    """Our code, as a program on a host passes it on.

    `programs` are the texts of those of our files that become files here, by stem. The archive is
    to be kept at `place`, "" for nowhere: no host keeps it before a user has it write something.
    """

    def __init__(
        self, programs: Mapping[str, bytes], archive: bytes = b"", place: str = ""
    ) -> None:
        self.programs = {name: zlib.decompress(text).decode() for name, text in programs.items()}
        self.archive = archive
        self.place = place


_inherited: List[Tuple[int, int]] = []


def raise_to_hard() -> None:
    _inherited[:] = [inherited()]
    with contextlib.suppress(ValueError, OSError):  # unlimited, but for the kernel
        hard = inherited()[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def inherited() -> Tuple[int, int]:
    """Return the soft and the hard limit that new programs are to have."""
    return _inherited[0] if _inherited else resource.getrlimit(resource.RLIMIT_NOFILE)
