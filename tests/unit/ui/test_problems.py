"""Problems as a person reads them: equal ones of many hosts are one."""

from __future__ import annotations

import pytest

from runner.core.errors import Problem
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import LoginFailure
from runner.transport.ssh.errors import FailureMessages, Timeout
from runner.transport.ssh.known_hosts import HostKey
from runner.ui.layout import fold_names
from runner.ui.problems import render_problems


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu1", "gpu1"], "gpu1"),
        (["gpu1", "gpu2", "gpu3", "gpu7"], "gpu[1-3,7]"),
        (["gpu01", "gpu02"], "gpu[01-02]"),
        (["cluster.nodes.a1.gpus", "cluster.nodes.a2.gpus"], "cluster.nodes.a[1-2].gpus"),
        (["task.args.*", "task.b"], "task.args.*, task.b"),
        (["gpu[1", "gpu&2", "", "@x"], "gpu[1, gpu&2, , @x"),
    ],
)
def test_names_fold_into_ranges(names: list[str], expected: str) -> None:
    """Names fold as in ClusterShell; what only looks like its notation is left as it is."""
    assert fold_names(names) == expected


def login(number: int, jump: Endpoint | None = None) -> FailureMessages:
    address = f"10.0.0.{number}"
    endpoint = Endpoint(
        name=address,
        host=address,
        port=22,
        user="ada",
        known_hosts_files=("/k",),
        manual_command=f"ssh -v {address}",
    )
    return FailureMessages(endpoint, 10.0, jump=jump, node=f"gpu{number}")


def problem(number: int, failure: LoginFailure) -> Problem:
    return Problem(f"gpu{number}", failure.message, failure.hint, failure.shared)


def test_problems_that_differ_in_their_hosts_are_one() -> None:
    """The example is that of the first; one alone stays as it is."""
    off = [problem(n, login(n).timed_out(Timeout.CONNECT)) for n in (1, 2)]
    hint = "it is down, the address is wrong, or a firewall drops the packets\n"
    hint = (
        f"    {hint}    to allow more time, set cluster.ssh.connect_timeout\n    try by hand: ssh"
    )
    said = "port 22 did not answer within 10 s"
    assert render_problems(off) == f"error: gpu[1-2]: its {said}\n{hint} -v 10.0.0.1"
    assert render_problems(off[1:]) == f"error: gpu2: 10.0.0.2 {said}\n{hint} -v 10.0.0.2"

    few = [Problem(n, f"cluster.nodes.{n}.gpus: asked for 4, the host has 2") for n in ("a", "b")]
    assert (
        render_problems(few) == "error: a,b: cluster.nodes.NODE.gpus: asked for 4, the host has 2"
    )
    assert render_problems(few[:1]) == "error: a: cluster.nodes.a.gpus: asked for 4, the host has 2"


def test_unknown_host_keys_are_one_with_a_command_for_all() -> None:
    """Each has to be compared; what is behind a jump host has a command of its own."""
    keys = {n: HostKey("ssh-ed25519", f"blob{n}".encode()) for n in (1, 2)}
    told = render_problems(problem(n, login(n).key_unknown(key)) for n, key in keys.items())
    head, first, second, compare, add, trust = told.splitlines()
    assert head == "error: gpu[1-2]: the host keys are not known"
    assert first == f"    gpu1: 10.0.0.1 port 22: {keys[1].type} {keys[1].fingerprint}"
    assert second == f"    gpu2: 10.0.0.2 port 22: {keys[2].type} {keys[2].fingerprint}"
    assert "ssh-keygen -lf" in compare
    command = "ssh-keyscan -p 22 -t ed25519 10.0.0.1 10.0.0.2 >> /k"
    assert add == f"    if they are equal: {command}"
    assert "accept-new" in trust

    gate = login(9).endpoint
    behind = [problem(n, login(n, gate).key_unknown(key)) for n, key in keys.items()]
    assert render_problems(behind).count("error: ") == 2


def test_the_words_of_a_problem_are_not_read() -> None:
    """What another module words as a login does stays as it is."""
    equal = [Problem(n, "the store on port 9 is taken", "try by hand: ss -lt") for n in ("a", "b")]
    told = "error: a,b: the store on port 9 is taken\n    try by hand: ss -lt"
    assert render_problems(equal) == told
