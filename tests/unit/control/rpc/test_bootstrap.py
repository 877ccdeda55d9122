"""Code that travels with a connection."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
import zlib
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from runner.control.code.source import shipped_tasks
from runner.control.rpc import bootstrap
from runner.core.model.spec import Node, Spec, Task


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
    done = boot(a_spec(host_python=python))

    assert (done.returncode, done.stdout, done.stderr) == (127, b"runner-boot: no-python\n", b"")


def test_setup_may_bring_the_python(tmp_path: Path) -> None:
    """It runs only where the interpreter is not there; what it says stays out of our protocol."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "our-python").symlink_to(sys.executable)
    lines = (
        'cat; echo "it\'s loud" >&2',
        f"PATH={tmp_path}/env:$PATH",
        f"echo ran >> {tmp_path}/ran",
    )

    brought = boot(a_spec(host_python="our-python", setup=lines), code=b"print('booted')\n")
    not_needed = boot(a_spec(host_python=sys.executable, setup=lines), code=b"print('booted')\n")

    assert (brought.stdout, brought.stderr) == (b"it's loud\nbooted\n", b"")
    assert (not_needed.stdout, not_needed.stderr) == (b"booted\n", b"")
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_setup_that_does_not_bring_it_is_quoted() -> None:
    """So that a misspelt path in it is seen."""
    spec = a_spec(host_python="no-such-python", setup=("source /no/such/env/activate",))
    problem = bootstrap.boot_problem(spec, "gpu1", boot(spec).stdout, "it ended")

    assert problem.message == (
        "there is no no-such-python on its PATH, also after the lines of cluster.setup"
    )
    assert "/no/such/env/activate: No such file" in problem.hint


@pytest.mark.parametrize(
    ("python", "key"), [("/nope/python", "cluster.python"), ("python3", "cluster.host_python")]
)
def test_the_key_that_was_set_is_named(python: str, key: str) -> None:
    """With the command that names its file."""
    spec = a_spec(host_python="/nope/python", python=python)
    problem = bootstrap.boot_problem(spec, "gpu1", b"runner-boot: no-python", "it ended")

    assert problem.message == "there is no /nope/python"
    assert problem.hint.startswith(f"set {key} to a Python 3.8 or newer there")
    assert problem.hint.endswith(f"python -m runner explain {key} cluster=lab")


def a_spec(**fields: Any) -> Spec:
    """Return a specification of one node."""
    node = Node("gpu1", "gpu1")
    return Spec("0102-0304-x-abcd", "lab", (node,), Task("t", "command", "true"), **fields)


def boot(spec: Spec, code: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the boot command, as a host would; `code` takes the place of ours."""
    words = ["sh", "-c", bootstrap.boot_command(spec, "gpu1")]
    text = "".join(f"{line}\n" for line in spec.setup).encode() + code
    return subprocess.run(words, input=text, capture_output=True, check=False)


def test_shipped_tasks_are_described_by_their_header() -> None:
    """Names and sizes cut the payload into its files."""
    tasks = shipped_tasks()
    header = tasks.header()

    assert sum(size for _, size in header["files"]) == len(tasks.payload)
    assert "resnet18.py" in {name for name, _ in header["files"]}
    assert len(header["hash"]) == 16
