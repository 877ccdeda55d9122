"""Programs of the system: run them, and report why one failed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROGRAMS = ("ip", "mount", "nsenter", "setpriv", "ssh", "ssh-keygen", "ssh-keyscan", "unshare")


class LabError(RuntimeError):
    """The lab itself failed, not what is tested on it."""


class NamespacedProcess(subprocess.Popen[str]):
    """A program that nsenter started in another PID namespace; signals go to the program itself.

    nsenter passes none on. Killed itself, it would leave the program behind, and later a zombie
    for the machine's PID 1, without whose care the namespace could never end.
    """

    def send_signal(self, sig: int) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")

        def inside() -> list[str]:
            return children.read_text().split() if self.poll() is None else []

        wait_until(lambda: self.poll() is not None or inside(), "nsenter to start the program")
        for pid in inside():
            with contextlib.suppress(ProcessLookupError):  # it ended this very moment
                os.kill(int(pid), sig)


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    timeout: float = 20,
    check: bool = True,
    kind: type[subprocess.Popen[str]] = subprocess.Popen,
    description: str = "",
) -> str:
    """Runs a program to its end, which has a deadline, and returns what it printed."""
    pipe = subprocess.PIPE
    with kind(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace") as program:
        try:
            out, err = program.communicate(stdin, timeout * PATIENCE)
        except BaseException:
            program.kill()
            raise
    if check and program.returncode:
        name = description or shlex.join(argv)
        raise LabError(f"{name} ended with exit code {program.returncode}\n{out}{err}")
    return out


def first_line(program: subprocess.Popen[str]) -> str:
    """Returns the first line of a program's output, "" if it ends without one."""
    assert program.stdout is not None
    with program.stdout as output:
        return output.readline().rstrip("\n")


def sshd_path() -> str:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def missing() -> str:
    """Returns why no lab can be made on this machine, or "" where it can."""
    if os.geteuid() != 0:
        return "the lab needs root"
    if not sshd_path():
        return "the lab needs OpenSSH's sshd"
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"the lab needs {', '.join(absent)}"
    namespaces = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"]
    try:
        run(namespaces)
    except LabError as error:
        return f"no namespaces here: {error}"
    return ""


def need(missing: str) -> None:
    """Skip a test for want of something; in CI a skip would look like a pass."""
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)


def make_keys(paths: Iterable[Path]) -> None:
    """Makes a key pair without passphrase at each path, all at once."""
    makers = {
        path: subprocess.Popen(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)],
            stdin=subprocess.DEVNULL,
        )
        for path in paths
    }
    if failed := [str(path) for path, maker in makers.items() if maker.wait()]:
        raise LabError(f"ssh-keygen made no key at {', '.join(failed)}")


def public(path: Path) -> str:
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])
