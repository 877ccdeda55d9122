"""Code that travels with a connection."""

from __future__ import annotations

import io
import subprocess
import zipfile
import zlib
from importlib.util import MAGIC_NUMBER

import pytest

from runner.control.code.source import shipped_tasks
from runner.control.rpc import bootstrap


def archive() -> zipfile.ZipFile:
    """The zip among what the loader reads: after a line of code and a line with its size."""
    _, size, data = bootstrap.host_code().split(b"\n", 2)
    assert int(size) == len(data)
    return zipfile.ZipFile(io.BytesIO(zlib.decompress(data)))


def test_only_core_and_host_travel() -> None:
    """Hosts get no other room, and no `__init__` that would import one."""
    rooms = {name.split("/")[1] for name in archive().namelist()}

    assert rooms == {"__init__.py", "core", "host"}
    assert archive().read("runner/__init__.py") == b""
    assert {"runner/host/agent/server.py", "runner/host/ranks/shim.py"} <= set(archive().namelist())


def test_each_module_travels_compiled_beside_its_source() -> None:
    """A host with this Python's version compiles nothing; any other compiles the source."""
    with archive() as code:
        sources = {name for name in code.namelist() if name.endswith(".py") and name.count("/") > 1}
        assert {f"{name}c" for name in sources} <= set(code.namelist())
        assert {code.read(f"{name}c")[:4] for name in sources} == {MAGIC_NUMBER}


def test_loader_is_one_line() -> None:
    """It is read by `readline`: the code in it must not be cut."""
    line, _ = bootstrap.host_code().split(b"\n", 1)

    compile(line, "loader", "exec")


@pytest.mark.parametrize("python", ["no-such-python", "~/no such/python", "/it's/not/there"])
def test_missing_python_is_told_in_words_of_ours(python: str) -> None:
    """Any POSIX shell gets as far as saying so, whatever the path looks like."""
    command = bootstrap.boot_command(python, "0102-0304-x-abcd", "gpu1")
    done = subprocess.run(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (127, b"runner-boot: no-python\n", b"")


def test_shipped_tasks_are_described_by_their_header() -> None:
    """Names and sizes cut the payload into its files."""
    tasks = shipped_tasks()
    header = tasks.header()

    assert sum(size for _, size in header["files"]) == len(tasks.payload)
    assert "resnet18.py" in {name for name, _ in header["files"]}
    assert len(header["hash"]) == 16
