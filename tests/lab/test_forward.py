"""Ports of a node on this machine: `forward`."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.request

import pytest

from tests.lab.lab import LOGIN_USER, LabFactory
from tests.lab.launching import PROGRAMS, Controller, Launcher
from tests.lab.waiting import wait_until

HTTP, ECHO, SILENT = 6006, 6007, 6008


def ports_of(forward: Controller) -> list[int]:
    """The ports here, in the order of the command line, once they are said."""
    forward.until(lambda: "Ctrl-C ends it\n" in forward.out, "the ports")
    return [
        int(port) for port in re.findall(r"^forwarding \S+:(\d+) to ", forward.out, re.MULTILINE)
    ]


def page(port: int) -> str:
    """What is served there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
        return str(answer.read().decode())


def echoed(port: int, data: bytes) -> bytes:
    """What comes back for it; the end of what is sent is told before."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_ports_of_nodes_behind_a_jump_host(lab_factory: LabFactory, launcher: Launcher) -> None:
    """Of the first node, or another; a refusal and a lost connection are said, and it goes on."""
    lab = lab_factory(names=["bastion", "inner1", "inner2"], isolated=["inner1", "inner2"])
    jump = f"{LOGIN_USER}@{lab['bastion'].address}"
    lab.write_cluster(launcher.conf, names=["inner1", "inner2"], ssh={"jump": jump})
    words = f'["{HTTP}","{ECHO}"]'
    raw = ("task.args_style=raw", f"task.args={words}", "task.entry=plain", "grace_s=1")
    run = launcher.start("cluster=lab", f"task.script={PROGRAMS / 'serving.py'}", *raw)
    run.until_printed("serving", 2)
    forward = launcher.start("forward", *("--run", run.run_id), f"0:{HTTP}", f"0:{ECHO}", "0:6008")
    http, echo, silent = ports_of(forward)
    assert page(http) == "inner1"
    data = os.urandom(3_000_000)
    assert echoed(echo, data) == data[::-1]
    assert echoed(silent, b"") == b""
    refused = f"note: inner1: nothing answers on its port {SILENT} yet"
    forward.until(lambda: refused in forward.err, "the refusal")

    taken = launcher("forward", "--run", run.run_id, f"{http}:{HTTP}")
    assert taken.code == 3
    assert taken.err.startswith(f"error: forward: port {http} of this machine is taken\n")

    for process in lab["inner1"].processes():
        if process.cmdline.startswith("sshd: "):
            lab["inner1"].kill(process.pid)
    again = "note: connected to inner1 again"
    forward.until(lambda: again in forward.err, "another connection")
    assert "note: the connection to inner1 was lost; connecting again" in forward.err
    assert page(http) == "inner1"

    other = launcher.start("forward", "--cluster", "lab", "--node", "inner2", f"0:{HTTP}")
    assert page(*ports_of(other)) == "inner2"
    assert other.out.endswith(f" to inner2:{HTTP}; Ctrl-C ends it\n")
    for each in (forward, other):
        with socket.create_connection(("127.0.0.1", ports_of(each)[0])):
            each.send()
            ended = each.wait(15)
        assert ended.code == 130, ended
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", http), 5)
    run.send()
    run.wait()
    wait_until(lambda: not any(lab.leftovers().values()), "that nothing is left")


def test_a_port_of_a_node_of_a_job(hpc: Launcher) -> None:
    """From the login node, so the program has to listen where that reaches it."""
    raw = ("task.args_style=raw", f'task.args=["{HTTP}","{ECHO}"]', "task.entry=plain", "grace_s=1")
    serving = (f"task.script={PROGRAMS / 'serving.py'}", "task.env.SERVE_AT=0.0.0.0")
    run = hpc.start("cluster=hpc", "task.nnodes=2", *serving, *raw)
    run.until_printed("serving", 2, seconds=90)
    second = json.loads((run.folder / "plan.json").read_text())["nodes"][1]["node"]
    forward = hpc.start("forward", "--run", run.run_id, "--node", second, f"0:{HTTP}", "0:6008")
    http, silent = ports_of(forward)
    assert page(http) == second
    assert echoed(silent, b"") == b""
    told = f"; it has to listen at {second}, not 127.0.0.1"
    forward.until(lambda: told in forward.err, "the refusal")
    forward.send()
    assert forward.wait(15).code == 130
    run.send()
    run.wait()
