"""Importer of the host-side code: a finder and loader of modules from an archive in memory.

The boot line executes it from the archive, so it imports none of our modules itself.
"""

from __future__ import annotations

import marshal
import sys
import zlib
from types import ModuleType
from typing import Any, Dict, Mapping, Tuple

ModuleSpec: Any = type(sys.__spec__)
"""By `importlib.machinery` it would cost some imports."""


class HostCode:
    """Our code, as a program on a host passes it on.

    `programs` are the texts of those of our files that become files here, by stem. The archive is
    to be kept at `place`, "" for nowhere: no host keeps it before a user has it write something.
    """

    def __init__(self, programs: Mapping[str, str], archive: bytes = b"", place: str = "") -> None:
        self.programs = programs
        self.archive = archive
        self.place = place


class Importer:
    """See PEP 451; the modules are as in `code_archive`."""

    def __init__(self, modules: Mapping[str, Tuple[bool, Dict[str, bytes]]], key: str) -> None:
        self._modules = modules
        self._key = key

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return the spec of a module of the archive, None for others."""
        del path, target
        if name not in self._modules:
            return None
        return ModuleSpec(name, self, is_package=self._modules[name][0])

    def create_module(self, _: object) -> None:
        """Leave that to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module, compiled if it is there for this version of Python."""
        blobs = self._modules[module.__name__][1]
        if self._key in blobs:
            code = marshal.loads(zlib.decompress(blobs[self._key]))  # noqa: S302 (our own)
        else:
            file = f"{module.__name__.replace('.', '/')}.py"
            code = compile(zlib.decompress(blobs[""]), file, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102


def start(content: Mapping[str, Any], key: str, archive: bytes, place: str) -> None:
    """Run the agent."""
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, Importer(content["modules"], key))
    programs = {name: zlib.decompress(text).decode() for name, text in content["programs"].items()}
    name = "runner.host.agent.server"
    __import__(name)
    sys.modules[name].main(HostCode(programs, archive, place))
