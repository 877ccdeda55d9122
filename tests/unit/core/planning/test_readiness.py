"""Readiness: each problem that makes a start pointless, as a person reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.core.model.facts import Facts, Gpu, Interpreter, SetupResult
from runner.core.model.spec import Node, Spec, Task
from runner.core.planning.build_plan import select_gpus
from runner.core.planning.readiness import problems_of, visible_gpus
from tests.golden.builders import SHIPPED, facts, gpus, spec

NODE = Node("gpu1", "10.0.0.1")
ONE = spec(NODE)


def text(asked: Spec, told: Facts) -> str:
    """Return all problems of the first node, as they are printed."""
    return "\n".join(str(problem) for problem in problems_of(asked, asked.nodes[0], told))


def told(**others: Any) -> Facts:
    """Facts of a host with 4 GPUs that is in order but for `others`."""
    return facts("gpu1", "eth0 10.0.0.1/24", gpu_count=4, **others)


def test_healthy_host_has_no_problem() -> None:
    """Nothing is reported of a host in order."""
    assert text(ONE, told()) == ""


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param(
            {"python": Interpreter(error="no python3 on PATH (/usr/bin:/bin)")},
            "gpu1: no python3 on PATH (/usr/bin:/bin)\n"
            "    set cluster.python to the interpreter that has torch there",
            id="no python",
        ),
        pytest.param(
            {"python": Interpreter("/usr/bin/python3", "3.11.2")},
            "gpu1: no torch in /usr/bin/python3 (Python 3.11.2)\n"
            "    set cluster.python to an interpreter that has it, activate its environment in "
            "cluster.setup, or there: /usr/bin/python3 -m pip install torch",
            id="no torch",
        ),
        pytest.param(
            {"setup": SetupResult(1, "module: command not found\n"), "python": Interpreter()},
            "gpu1: cluster.setup ended with 1\n    module: command not found",
            id="setup failed: nothing else is known",
        ),
        pytest.param(
            {"setup": SetupResult(-1)},
            "gpu1: cluster.setup did not end in time\n    (no output)",
            id="setup hangs",
        ),
        pytest.param(
            {"workdir_error": "Permission denied: /home/ada/.runner", "disk_free": 0},
            "gpu1: cluster.workdir: Permission denied: /home/ada/.runner\n    set cluster.workdir",
            id="workdir not writable",
        ),
        pytest.param(
            {"workdir_error": "/w belongs to the user bob", "workdir_exposed": "inside"},
            "gpu1: cluster.workdir: /w belongs to the user bob\n"
            "    each user needs a work folder that nobody else can change, for instance\n"
            "    cluster.workdir=/home/ada/.runner-${oc.env:USER}",
            id="workdir of several users",
        ),
        pytest.param(
            {"workdir_error": "/s can be written to by everybody", "workdir_exposed": "above"},
            "gpu1: cluster.workdir: /s can be written to by everybody\n"
            "    whoever can change it can replace what runs here: have its owner do `chmod go-w` "
            "on it,\n"
            "    or set cluster.workdir to a folder that nobody else can change, such as ~/.runner",
            id="workdir in a folder of others",
        ),
        pytest.param(
            {"disk_free": 31 << 20},
            "gpu1: cluster.workdir: /home/ada/.runner has 31 MiB free, "
            "a run needs 32 MiB and room for its logs\n"
            "    see what ended runs left: runner clean --cluster lab --older-than 0s --dry-run\n"
            "    without --dry-run that is removed; or set cluster.workdir to another disk",
            id="disk full",
        ),
        pytest.param(
            {"disk_free": 31 << 20, "has_stored": False},
            "gpu1: cluster.workdir: /home/ada/.runner has 31 MiB free, "
            "a run needs 32 MiB and room for its logs\n"
            "    no run has left anything there: set cluster.workdir to another disk",
            id="disk full of other things",
        ),
        pytest.param(
            {"project_exists": False, "script_exists": False},
            "gpu1: cluster.project: there is no folder /home/ada/digits\n"
            "    set cluster.project to where the code is on the hosts, "
            "or to null to have it pushed",
            id="no project",
        ),
        pytest.param(
            {"script_exists": False},
            "gpu1: task.script: there is no file train.py in /home/ada/digits\n"
            "    name it relative to cluster.project, or as an absolute path on the hosts",
            id="no script",
        ),
        pytest.param(
            {"reserved_port": 0, "port_error": "29500 is in use"},
            "gpu1: cluster.master_port: 29500 is in use\n"
            "    set cluster.master_port to another port, a range such as 29500-29600, or auto",
            id="port taken",
        ),
    ],
)
def test_problem_says_what_to_do(others: dict[str, Any], expected: str) -> None:
    """Each problem names the host, what was seen, and the key to change."""
    assert text(ONE, told(**others)) == expected


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ("ib0", "there is no interface ib0"),
        ("eth0,ib0", "there is no interface ib0"),
        ("eth1", "eth1 has no address"),
        ("eth0", ""),
        ("eth0,lo", ""),
        (None, ""),
    ],
)
def test_an_interface_that_the_host_lacks(chosen: str | None, problem: str) -> None:
    """With the key and those it has; a host that tells none is not judged."""
    asked = spec(replace(NODE, interface=chosen))
    host = facts(
        "gpu1", "eth0 10.0.0.1/24", "eth1", "eth2 10.1.0.1/16 fd00::1/64", "veth fe80::1/64"
    )
    expected = f"gpu1: cluster.nodes.gpu1.interface: {problem}\n    legal here: eth0, eth2"
    assert text(asked, host) == (expected if problem else "")
    assert text(asked, replace(host, interfaces=())) == ""


@pytest.mark.parametrize(
    ("kind", "target", "others", "refused_by"),
    [
        ("command", "./train.sh", {"project": ""}, "workdir"),
        ("command", "bin/train", {}, "project"),
        ("command", "bash", {}, ""),
        ("command", "/opt/bin/train", {}, ""),
        ("script", "./train.py", {}, ""),
        ("command", "./train.sh", {"code_noexec": False}, ""),
    ],
)
def test_what_would_be_executed_on_a_noexec_mount(
    kind: str, target: str, others: dict[str, Any], refused_by: str
) -> None:
    """Only a command that is a file of the code; Python only reads its files."""
    task = Task("t", kind, target, entry="plain")
    problem = text(spec(NODE, task=task), told(**{"code_noexec": True, **others}))
    if not refused_by:
        assert problem == ""
        return
    assert f"task.command: {target} cannot be executed, /home/ada/" in problem
    assert f'task.command=[bash,"{target}"], or set cluster.{refused_by} to' in problem


@pytest.mark.parametrize(
    ("node", "others", "expected"),
    [
        pytest.param(
            Node("gpu1", "h", gpu_count=8),
            {},
            "gpu1: cluster.nodes.gpu1.gpus: asked for 8, the host has 4 (nvml)\n"
            "    legal here: 0 to 4, or a list of [0, 1, 2, 3]",
            id="too many",
        ),
        pytest.param(
            Node("gpu1", "h", gpu_count=2, gpu_ids=(0, 7)),
            {},
            "gpu1: cluster.nodes.gpu1.gpus: asked for device 7, the host has 4 (nvml)\n"
            "    legal here: 0 to 4, or a list of [0, 1, 2, 3]",
            id="a device that is not there",
        ),
        pytest.param(
            Node("gpu1", "h", gpu_count=2, gpu_ids=(0, 2)),
            {"preset_env": {"CUDA_VISIBLE_DEVICES": "2,3"}},
            "gpu1: cluster.nodes.gpu1.gpus: asked for device 0, the host has 2 (nvml)\n"
            "    legal here: 0 to 2, or a list of [2, 3]",
            id="a device the host keeps from us",
        ),
        pytest.param(
            Node("gpu1", "h", gpu_count=1),
            {"gpus": (), "gpu_source": "the driver did not answer within 15 s"},
            "gpu1: cluster.nodes.gpu1.gpus: asked for 1, the host has none "
            "(the driver did not answer within 15 s)\n"
            "    legal here: 0",
            id="none at all",
        ),
    ],
)
def test_gpus_that_are_not_there_are_named(
    node: Node, others: dict[str, Any], expected: str
) -> None:
    """A wrong choice of GPUs is answered with what the host has."""
    assert text(spec(node), told(**others)) == expected


def test_all_problems_are_told_at_once() -> None:
    """Nobody has to repair one to hear of the next."""
    broken = told(
        python=Interpreter(error="no python3"), disk_free=0, project_exists=False, reserved_port=0
    )

    asked = spec(Node("gpu1", "h", gpu_count=9))
    found = problems_of(asked, asked.master, broken)

    assert [problem.message.partition(":")[0] for problem in found] == [
        *("no python3", "cluster.workdir", "cluster.project"),
        *("cluster.nodes.gpu1.gpus", "cluster.master_port"),
    ]


def test_shipped_task_needs_no_project() -> None:
    """The user's folder is none of its business."""
    assert text(spec(NODE, task=SHIPPED), told(project_exists=False, script_exists=False)) == ""


@pytest.mark.parametrize(
    ("kind", "python", "expected"),
    [
        ("script", Interpreter("/usr/bin/python3", "3.11.2"), ""),
        ("script", Interpreter(error="no python3"), "gpu1: no python3\n"),
        ("command", Interpreter(error="no python3"), ""),
    ],
)
def test_a_plain_program_needs_no_torch(kind: str, python: Interpreter, expected: str) -> None:
    """Only an interpreter, where it is Python."""
    asked = spec(NODE, task=Task("t", kind, "t.py", entry="plain"))
    assert text(asked, told(python=python)).startswith(expected)
    assert bool(text(asked, told(python=python))) == bool(expected)


def test_only_the_master_needs_a_port() -> None:
    """The other nodes were not asked to hold one."""
    asked = spec(Node("gpu0", "h"), NODE)

    assert problems_of(asked, asked.nodes[1], told(reserved_port=0)) == []


def test_unknown_disk_is_no_problem() -> None:
    """What a host could not tell is not held against it."""
    assert text(ONE, told(disk_free=None)) == ""


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        pytest.param(None, (0, 1, 2, 3), id="unset"),
        pytest.param("", (), id="empty"),
        pytest.param("2,0", (2, 0), id="in its own order"),
        pytest.param(" 1 , 3 ", (1, 3), id="spaces"),
        pytest.param("-1", (), id="the usual way to hide all"),
        pytest.param("1,-1,2", (1,), id="CUDA stops at what is no device"),
        pytest.param("0,9,1", (0,), id="also at a device that is not there"),
        pytest.param("GPU-0002-a100,GPU-0000", (2, 0), id="UUIDs, also short"),
        pytest.param("GPU-000", (), id="a short UUID of several"),
        pytest.param("NoDevFiles", (), id="Slurm's word for none"),
    ],
)
def test_hosts_own_choice_of_gpus_holds(chosen: str | None, expected: tuple[int, ...]) -> None:
    """CUDA_VISIBLE_DEVICES as the host sets it is read as CUDA reads it."""
    own = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}

    assert visible_gpus(facts("a", gpu_count=4, preset_env=own)) == expected


def test_gpus_are_named_by_their_index() -> None:
    """A host may have lost one: indices then have a gap."""
    assert visible_gpus(facts("a", gpus=(Gpu(0), Gpu(2)))) == (0, 2)


@pytest.mark.parametrize(
    ("node", "own", "expected"),
    [
        pytest.param(Node("a", "a"), {}, (0, 1, 2, 3), id="all"),
        pytest.param(Node("a", "a", gpu_count=2), {}, (0, 1), id="some"),
        pytest.param(Node("a", "a", gpu_count=0), {}, (), id="none"),
        pytest.param(Node("a", "a", gpu_count=2, gpu_ids=(3, 1)), {}, (3, 1), id="these"),
        pytest.param(
            Node("a", "a", gpu_count=1), {"CUDA_VISIBLE_DEVICES": "3,2"}, (3,), id="of the host's"
        ),
    ],
)
def test_nodes_choice_is_made_among_those(
    node: Node, own: dict[str, str], expected: tuple[int, ...]
) -> None:
    """All that are visible, the first few of them, or those named."""
    assert select_gpus(node, facts("a", gpus=gpus(4), preset_env=own)) == expected
