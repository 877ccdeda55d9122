"""Causes of faults on the lab, and their cures."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import sysconfig
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
DEAD_NEIGHBOUR = "lladdr 02:00:00:00:0b:ad nud permanent dev eth0"


def no_setup(_lab: Lab, _user: Launcher) -> contextlib.AbstractContextManager[object]:
    """Nothing has to be done."""
    return contextlib.nullcontext()


def short_timeouts(_lab: Lab, user: Launcher) -> contextlib.AbstractContextManager[object]:
    """Internal times are shorter, such as that for the proof of an end."""
    return contextlib.nullcontext()


def on_hosts(command: str, undo_command: str, *nodes: str) -> FaultSetup:
    """A shell command of root's on hosts (node3 unless others are named), and what undoes it."""

    @contextlib.contextmanager
    def setup(lab: Lab, _user: Launcher) -> Iterator[None]:
        addresses = {name: host.address for name, host in lab.hosts.items()}
        addresses["nobody"] = lab.address.rpartition(".")[0] + ".253"
        hosts = [lab[name] for name in nodes or ("node3",)]
        with contextlib.ExitStack() as stack:
            for host in hosts:
                stack.callback(host.sh, undo_command.format(**addresses), user="root", check=False)
                host.sh(command.format(**addresses), user="root")
            yield

    return setup


def on_other_hosts(command: str) -> FaultSetup:
    """A shell command on all hosts but node3, in a folder that is removed again."""
    return on_hosts(
        f"mkdir -p {FAULT_DIR}; cd {FAULT_DIR}; {command}",
        f"rm -rf {FAULT_DIR}",
        "node1",
        "node2",
        "node4",
    )


@contextlib.contextmanager
def port_taken(lab: Lab, _user: Launcher) -> Iterator[None]:
    """Somebody listens where the ranks are to meet."""
    code = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(99)"
    listener = lab["node1"].popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: f":{PORT} " in lab["node1"].sh("ss -ltn"), "the thief to listen")
        yield
    finally:
        listener.kill()
        listener.wait()


@contextlib.contextmanager
def package_missing(lab: Lab, user: Launcher) -> Iterator[None]:
    """The project names a package that all hosts have but one."""
    (user.folder / "requirements.txt").write_text("some-data-kit==1.0\n")
    make_package = f"d={FAULT_DIR}/some_data_kit-1.0.dist-info; mkdir -p $d; touch $d/METADATA"
    with on_other_hosts(make_package)(lab, user):
        yield


@contextlib.contextmanager
def release_changed(lab: Lab, user: Launcher) -> Iterator[None]:
    """Somebody edits the pushed code on one host."""
    (user.folder / "train.py").write_text("print('hello')\n")
    deployed = user("deploy", "--cluster", "lab")
    (name,) = set(re.findall(r"release ([0-9a-f]{16})", deployed.out + deployed.err))
    code = f"~/.runner/releases/{name}/code"
    lab["node3"].sh(f"chmod -R u+w {code}; echo 'print(1)' >>{code}/train.py")
    yield


@contextlib.contextmanager
def etcd_on(lab: Lab, name: str, *options: str) -> Iterator[str]:
    """An etcd of somebody else's on a host, with the v2 API unless told otherwise; its endpoint."""
    url = f"http://{lab[name].address}:{ETCD_PORT}"
    program = lab[name].popen(
        [
            *("etcd", "--data-dir", "etcd", "--listen-client-urls", url),
            *("--advertise-client-urls", url, *(options or ("--enable-v2",))),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        listens = f"{lab[name].address}:{ETCD_PORT} "
        wait_until(lambda: listens in lab[name].sh("ss -ltn"), "etcd to listen", timeout=20)
        yield f"{lab[name].address}:{ETCD_PORT}"
    finally:
        program.kill()
        program.wait()


@contextlib.contextmanager
def etcd_without_v2(lab: Lab, _user: Launcher) -> Iterator[None]:
    """An etcd that offers no v2 API."""
    with etcd_on(lab, "node4", "--enable-v2=false"):
        yield


@contextlib.contextmanager
def etcd_client_missing(lab: Lab, user: Launcher) -> Iterator[None]:
    """One host's interpreter has no python-etcd; whatever else it has stays."""
    site = sysconfig.get_path("purelib")
    hide = (
        "mkdir -p /run/site; mount -t tmpfs tmpfs /run/site; "
        "mkdir /run/site/upper /run/site/work; mount -t overlay overlay "
        f"-o lowerdir={site},upperdir=/run/site/upper,workdir=/run/site/work {site}; "
        f"rm -r {site}/etcd {site}/python_etcd*"
    )
    with (
        etcd_on(lab, "node4"),
        on_hosts(hide, f"umount {site}; umount /run/site")(lab, user),
    ):
        yield


@contextlib.contextmanager
def endpoint_dropped(lab: Lab, user: Launcher) -> Iterator[None]:
    """One host's packets to the etcd vanish."""
    drop = f"ip neigh replace {{node4}} {DEAD_NEIGHBOUR}"
    with etcd_on(lab, "node4"), on_hosts(drop, "ip neigh del {node4} dev eth0")(lab, user):
        yield


def kill_etcd(lab: Lab, _running: Controller) -> None:
    """Somebody kills the etcd of the run."""
    (etcd,) = lab["node3"].processes("--listen-client-urls")
    lab["node3"].kill(etcd.pid)


def power_off(lab: Lab, _running: Controller) -> None:
    """Cut the power of a host."""
    lab["node3"].power_off()


def kill_torchrun(lab: Lab, _running: Controller) -> None:
    """Somebody kills torchrun."""
    (torchrun,) = (
        process
        for process in lab["node3"].processes("torch.distributed.run")
        if "-m torch.distributed.run" in process.cmdline
    )
    lab["node3"].kill(torchrun.pid)


SETUP_PYTHONPATH = f"cluster.setup=['export PYTHONPATH={FAULT_DIR}']"
FAKE_NEW_ETCD = (
    "printf '#!/bin/sh\\necho etcd Version: 3.6.1\\n' >/run/etcd; chmod +x /run/etcd; "
    "mount --bind /run/etcd /usr/bin/etcd"
)
HIDE_ETCD, RESTORE_ETCD = "mount --bind /dev/null /usr/bin/etcd", "umount /usr/bin/etcd"
BREAK_DNS = (
    "set -e; echo 'nameserver {nobody}' >/run/resolv; cp /etc/nsswitch.conf /etc/hosts /run/; "
    "mount --bind /run/resolv /etc/resolv.conf; grep localhost /run/hosts >/etc/hosts; "
    "sed 's/^hosts:.*/hosts: files dns/' /run/nsswitch.conf >/etc/nsswitch.conf"
)
RESTORE_DNS = (
    "umount /etc/resolv.conf; cat /run/nsswitch.conf >/etc/nsswitch.conf; "
    "cat /run/hosts >/etc/hosts"
)


@contextlib.contextmanager
def disk_full(lab: Lab, _user: Launcher) -> Iterator[None]:
    """Leave no byte free."""
    lab["node3"].fill_disk()
    yield
    lab["node3"].free_disk()


@contextlib.contextmanager
def unplugged(lab: Lab, _user: Launcher) -> Iterator[None]:
    """Pull its cable."""
    lab["node3"].unplug()
    yield
    lab["node3"].plug()


@contextlib.contextmanager
def host_key_changed(lab: Lab, _user: Launcher) -> Iterator[None]:
    """Give it another host key."""
    lab["node3"].change_host_key()
    yield
    lab["node3"].restore_host_key()


@contextlib.contextmanager
def misleading_name(lab: Lab, user: Launcher) -> Iterator[None]:
    """One host takes the master's name for itself."""
    undo = "cat /run/hosts >/etc/hosts"
    own = "cp /etc/hosts /run/; echo '127.0.1.1 master.lab' >>/etc/hosts"
    right = "cp /etc/hosts /run/; echo '{node1} master.lab' >>/etc/hosts"
    with (
        on_hosts(own, undo)(lab, user),
        on_hosts(right, undo, "node1", "node2", "node4")(lab, user),
    ):
        yield
