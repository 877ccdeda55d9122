"""Causes of faults on the lab, and their cures."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tests.lab.lab import Lab
from tests.lab.launching import Controller, Launcher
from tests.lab.waiting import wait_until

FaultSetup: TypeAlias = "Callable[[Lab, Launcher], contextlib.AbstractContextManager[object]]"
MidRunFault: TypeAlias = Callable[[Lab, Controller], None]

PORT = 29777
ETCD_PORT = 2379
FAULT_DIR = "/dev/shm/fault"


def no_setup(_lab: Lab, _user: Launcher) -> contextlib.AbstractContextManager[object]:
    """Nothing has to be done."""
    return contextlib.nullcontext()


def on_host(command: str, undo_command: str, node: str = "node2") -> FaultSetup:
    """A shell command of root's on a host, and what undoes it."""

    @contextlib.contextmanager
    def setup(lab: Lab, _user: Launcher) -> Iterator[None]:
        addresses = {name: host.address for name, host in lab.hosts.items()}
        addresses["nobody"] = lab.address.rpartition(".")[0] + ".253"
        host = lab[node]
        try:
            host.sh(command.format(**addresses), user="root")
            yield
        finally:
            host.sh(undo_command.format(**addresses), user="root", check=False)

    return setup


def on_other_host(command: str) -> FaultSetup:
    """A shell command on node1 alone, in a folder that is removed again."""
    make = f"mkdir -p {FAULT_DIR}; cd {FAULT_DIR}; {command}"
    return on_host(make, f"rm -rf {FAULT_DIR}", "node1")


@contextlib.contextmanager
def port_taken(lab: Lab, _user: Launcher) -> Iterator[None]:
    """Somebody listens where the ranks are to meet."""
    code = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(600)"
    listener = lab["node1"].popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: f":{PORT} " in lab["node1"].sh("ss -ltn"), "the thief to listen")
        yield
    finally:
        listener.kill()
        listener.wait()


@contextlib.contextmanager
def etcd_on(lab: Lab, name: str) -> Iterator[str]:
    """An etcd of somebody else's on a host, with the v2 API; its endpoint."""
    url = f"http://{lab[name].address}:{ETCD_PORT}"
    listening = ("--listen-client-urls", url, "--advertise-client-urls", url)
    program = lab[name].popen(
        ["etcd", "--data-dir", "etcd", *listening, "--enable-v2"],
        stderr=subprocess.DEVNULL,
    )
    try:
        listens = f"{lab[name].address}:{ETCD_PORT} "
        wait_until(lambda: listens in lab[name].sh("ss -ltn"), "etcd to listen", timeout=20)
        yield f"{lab[name].address}:{ETCD_PORT}"
    finally:
        program.kill()
        program.wait()


def power_off(lab: Lab, _running: Controller) -> None:
    """Cut the power of a host."""
    lab["node2"].power_off()


def kill_torchrun(lab: Lab, _running: Controller) -> None:
    """Somebody kills torchrun."""
    (torchrun,) = (
        process
        for process in lab["node2"].processes("torch.distributed.run")
        if "-m torch.distributed.run" in process.cmdline
    )
    lab["node2"].kill(torchrun.pid)


@contextlib.contextmanager
def disk_full(lab: Lab, _user: Launcher) -> Iterator[None]:
    """Leave no byte free."""
    lab["node2"].fill_disk()
    yield
    lab["node2"].free_disk()
