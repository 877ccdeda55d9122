"""Code archive: the modules of core and host as one message, which a host may keep as a file.

It is a checksum, then a dict by `marshal`, which Python has at hand before anything is imported.
Each module is there as source, or compiled for one version of Python, or both.
"""

from __future__ import annotations

import marshal
import zlib
from types import CodeType
from typing import Dict, Mapping, NamedTuple, Optional, Tuple

FOLDER = "code"
"""The folder of the usual workdir in which hosts keep archives, each by its hash and its key."""

SOURCE = ""
"""The key of a module's source; compiled, it has that of the version: its magic number, in hex."""

IMPORTER = "runner.host.process.importer"
"""The module that the boot line executes; it imports the others."""

Blobs = Dict[str, bytes]


class Archive(NamedTuple):
    """What an archive holds, compressed: modules by name, and programs of ours by that of a file.

    Of a module there is whether it is a package, and its blobs by key.
    """

    modules: Dict[str, Tuple[bool, Blobs]]
    programs: Blobs

    def pack(self) -> bytes:
        """Return it as one message."""
        content = marshal.dumps({"modules": self.modules, "programs": self.programs}, 2)
        return b"%08x" % zlib.crc32(content) + content

    def compiled(self, key: str) -> Archive:
        """Return it for hosts with this version of Python, whose key it is, and for no others."""
        modules = {
            name: (is_package, {key: compile_source(name, blobs[SOURCE])})
            for name, (is_package, blobs) in self.modules.items()
        }
        return self._replace(modules=modules)


def unpack(data: bytes) -> Archive:
    """Return what a message holds that arrived whole."""
    content: Mapping[str, object] = marshal.loads(memoryview(data)[8:])  # noqa: S302 (our own)
    return Archive(**content)  # type: ignore[arg-type]


def compile_source(name: str, blob: bytes) -> bytes:
    file = f"{name.replace('.', '/')}.py"
    return code_blob(compile(zlib.decompress(blob), file, "exec", dont_inherit=True))


def code_blob(code: Optional[CodeType]) -> bytes:
    return zlib.compress(marshal.dumps(code))
