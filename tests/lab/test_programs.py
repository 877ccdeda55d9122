"""Programs of every kind, started on real hosts as they were written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.golden.here import write
from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, ROOT, Launcher, Result
from tests.lab.waiting import PATIENCE, wait_until

ONE_CORE = "cluster.env.OMP_NUM_THREADS=1"
BOTH = {"node1": 0, "node2": 1}
"""The rank on each host."""


def python_command(code: str) -> str:
    return f"task.command={json.dumps([sys.executable, '-c', code])}"


def shown(done: Result, names: Mapping[str, int]) -> dict[int, dict[str, str]]:
    return {
        rank: dict(line.partition("=")[::2] for line in done.log(node, rank).splitlines())
        for node, rank in names.items()
    }


def test_a_program_that_spawns_its_own_workers(on_lab: Launcher) -> None:
    """`entry: plain`: its workers meet on the port that was kept free for them, across hosts."""
    program = (f"task.script={PROGRAMS / 'spawning.py'}", "task.args.money=$5$$")
    done = on_lab.succeed("cluster=lab", *program, PLAIN_ENTRY, ONE_CORE)
    for worker in range(4):
        assert f"worker {worker} of 4: sum 6" in done.out
    assert "arguments ['--money', '$5$$']" in done.log("node1", 0)
    assert done.result["ranks"].keys() == {"0", "1"}
    assert "torchrun" not in done.err
    assert "warning" not in done.err


@pytest.mark.parametrize(("what", "to"), [("apart", 0), ("meets", 1), ("serves", 2)])
def test_nodes_that_did_not_train_together_are_named(
    on_lab: Launcher, lab: Lab, what: str, to: int
) -> None:
    """As where a program sets MASTER_ADDR to localhost; not for a store beside the common one."""
    args = [what, lab[f"node{to}"].address if to else ""]
    script = (f"task.script={PROGRAMS / 'stores.py'}", "sample_s=1")
    words = (*script, f"task.args_after={json.dumps(args)}")
    apart = not to
    cluster = ("cluster=lab4", "cluster.only=[node1,node2,node3]") if to > 1 else ("cluster=lab",)
    done = on_lab.succeed(*cluster, PLAIN_ENTRY, *words)
    plan = json.loads((done.folder / "plan.json").read_text())
    where = f"{plan['master_addr']}:{plan['master_port']}"
    assert (f"warning: node2: no rank met the master at {where}" in done.err) is apart, done
    assert ("warning" in done.err) is apart, done
    assert done.result["nodes"]["node2"]["apart"] is apart


def test_a_plain_rank_knows_its_place(on_lab: Launcher) -> None:
    """It has what torchrun would tell one rank per node, and nothing of torchrun's own.

    `null` takes a name out, whoever sets it: the host, setup lines, the cluster or the runner.
    """
    names = ["NODE_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    names += ["MASTER_PORT", "TORCHELASTIC_RUN_ID"]
    taken = ["RANK", "HOME", "FROM_SETUP", "FROM_CLUSTER", "DIST_BACKEND"]
    null = [f"task.env.{name}=null" for name in taken]
    setup = ("cluster.setup=['export FROM_SETUP=1 KEPT=1']", "cluster.env.FROM_CLUSTER=1")
    own = ("cluster.nodes.node1.env.KEPT=2", "cluster.nodes.node2.env.KEPT=null")
    ranks = on_lab.rank_overrides(*(f"env={name}" for name in (*names, *taken, "KEPT")))
    done = on_lab.succeed("cluster=lab", *ranks, *null, *setup, *own)
    plan = json.loads((done.folder / "plan.json").read_text())
    for rank, told in shown(done, BOTH).items():
        assert told == {
            **dict.fromkeys(taken, "None"),
            "KEPT": "None" if rank else "2",
            "NODE_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "None",
            "LOCAL_WORLD_SIZE": "None",
            "TORCHELASTIC_RUN_ID": "None",
            "MASTER_ADDR": plan["master_addr"],
            "MASTER_PORT": str(plan["master_port"]),
        }


@pytest.mark.promise(14)
def test_each_node_has_its_own_python_setup_and_environment(
    on_lab: Launcher, lab: Lab, tmp_path: Path
) -> None:
    """Over and after the cluster's; the script of a shell finds them, and its place, in variables.

    `dry_run` prints the same.
    """
    nodes: dict[str, dict[str, object]] = {}
    for name in BOTH:
        python = tmp_path / name / "python3"
        python.parent.mkdir()
        python.symlink_to(Path(sys.executable).resolve())
        nodes[name] = {"python": str(python), "setup": [f"export OF={name} ALL=$ALL+{name}"]}
    nodes["node2"]["env"] = {"MODE": "off"}
    path = lab.write_cluster(
        on_lab.conf, names=BOTH, setup=["export ALL=all"], env={"MODE": "3.10"}
    )
    cluster = yaml.safe_load(path.read_text())
    for name, keys in nodes.items():
        cluster["nodes"][name].update(keys)
    path.write_text(yaml.safe_dump(cluster, sort_keys=False))
    shown_names = "OF=$OF ALL=$ALL MODE=$MODE PYTHON=$(command -v python3) PLACE=$NODE_RANK/$NNODES"
    (on_lab.folder / "t.sh").write_text(f"printf '%s\\n' {shown_names}\n")
    (on_lab.folder / "t.py").touch()
    command = ("cluster=lab", PLAIN_ENTRY, "task.command=[bash,t.sh]")
    done = on_lab.succeed(*command)
    for node, rank in BOTH.items():
        assert shown(done, BOTH)[rank] == {
            "OF": node,
            "ALL": f"all+{node}",
            "MODE": "off" if rank else "3.10",
            "PYTHON": str(nodes[node]["python"]),
            "PLACE": f"{rank}/2",
        }
    planned = on_lab.succeed("cluster=lab", PLAIN_ENTRY, "task.script=t.py", "dry_run=true")
    for node, keys in nodes.items():
        plan = planned.out.partition(f"# {node} (")[2].partition("\n\n")[0]
        assert f"{keys['python']} -u t.py" in plan, planned
        assert f"export OF={node}" in plan, planned
    assert planned.out.count("MODE=off") == 1


@pytest.mark.promise(14)
def test_only_ranks_import_from_the_users_folder(on_lab: Launcher) -> None:
    """As by hand: the script's own folder comes first for its ranks, torchrun looks in neither.

    NODE_RANK and NNODES are torch's GROUP_RANK and GROUP_WORLD_SIZE.
    """
    program = (
        "import json, os, random, sys, mine\n"
        "names = ('NODE_RANK', 'NNODES', 'GROUP_RANK', 'GROUP_WORLD_SIZE')\n"
        "print(json.dumps([sys.path[0], [os.environ.get(name) for name in names]]))\n"
    )
    hiding = ("json", "logging", "numpy", "queue", "random", "torch", "types")
    write(on_lab.folder, {f"{name}.py": "raise ImportError('of the user')\n" for name in hiding})
    write(on_lab.folder, {"src/t.py": program, "lib/mine.py": ""})
    words = ("cluster=lab", "task.script=src/t.py", "task.env.PYTHONPATH=lib", ONE_CORE)
    for entry in ("task.preload=true", "task.preload=false", PLAIN_ENTRY):
        done = on_lab.succeed(*words, entry)
        for node, rank in BOTH.items():
            folder, (node_rank, nnodes, *of_torch) = json.loads(done.log(node, rank))
            assert folder.endswith(f"/{node}/work/src")
            assert (node_rank, nnodes) == (str(rank), "2")
            expected = [None, None] if entry == PLAIN_ENTRY else [node_rank, nnodes]
            assert of_torch == expected
            assert "each rank imports torch itself" not in done.log(node, rank, "err")
    on_lab.succeed("cluster=local", *words[1:], "cluster.nproc_per_node=1")  # here, with its facts


@pytest.mark.promise(8)
def test_an_import_that_fails_is_explained_by_the_projects_files(on_lab: Launcher) -> None:
    """By what was pushed, or is here: at the end of the run, and by `why`."""
    subprocess.run(["git", "init", "-q", str(on_lab.folder)], check=True)
    files = {
        ".gitignore": "runs/\nours.py\n",
        "extra/lib/__init__.py": "",
        "ours.py": "",
        "a.py": "import ours\n",
        "b.py": "import lib\n",
    }
    write(on_lab.folder, files)
    for cluster, script, told in (
        ("lab", "a.py", "git or .runnerignore leaves it out"),
        ("lab", "b.py", "task.env.PYTHONPATH=extra"),
        ("local", "b.py", "task.env.PYTHONPATH=extra"),
    ):
        done = on_lab(f"cluster={cluster}", f"task.script={script}", PLAIN_ENTRY, "grace_s=1")
        assert (done.code, told in done.err) == (1, True), done
        assert told in on_lab("why").out


def test_a_daemon_that_is_left_over_is_named(on_lab: Launcher) -> None:
    """It is ended with the run, and who wonders where it went reads that at the end."""
    code = "import subprocess as s; s.Popen(['sleep', '600'], start_new_session=True)"
    done = on_lab.succeed("cluster=lab", "cluster.only=[node1]", PLAIN_ENTRY, python_command(code))
    assert "what it had left running was ended: 'sleep'; 0 processes left" in done.err, done
    assert done.result["nodes"]["node1"]["left_over"] == ["sleep"]


@pytest.mark.all
def test_a_plain_rank_dies_with_those_who_watch_it(lab: Lab, on_lab: Launcher) -> None:
    """Supervisor and guardian killed at once: no launcher is there to end it in their stead."""
    words = on_lab.rank_overrides("deaf", "sleep=600")
    on_lab.succeed("cluster=lab", *words, "detach=true", "grace_s=1")
    host = lab["node2"]
    (shim,) = [each for each in host.processes() if "/node2/rank.py " in each.cmdline]
    parents = {each.pid: each.ppid for each in host.processes()}
    both = f"{parents[shim.pid]} {parents[parents[shim.pid]]}"
    host.sh(f"kill -STOP {both}; kill -KILL {both}")
    wait_until(lambda: not host.processes("RUNNER_RUN_ID"), "the rank to be gone")
    on_lab("stop", "--run", "latest", "--cluster", "lab")


def test_a_rank_hears_what_came_before_it_began(tmp_path: Path) -> None:
    """A TERM that its shim gets in the moment before the fork is the rank's."""
    program = (
        "import os, signal, sys, time\n"
        "from runner.host.ranks import shim\n"
        "forks, about_to_fork = os.pipe()\n"
        "fork = os.fork\n"
        "child = fork()\n"
        "if child:\n"
        "    os.read(forks, 1)\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    os._exit(os.WTERMSIG(os.waitpid(child, 0)[1]))\n"
        "def fork_late():\n"
        "    os.write(about_to_fork, b'x')\n"
        "    while signal.SIGTERM not in signal.sigpending():\n"
        "        time.sleep(0.01)\n"
        "    return fork()\n"
        "os.fork = fork_late\n"
        "shim.main(sys.argv[1:])\n"
    )
    told = [str(tmp_path), "", "NOTHING", sys.executable, "-c", "import time; time.sleep(600)"]
    done = subprocess.run(
        [sys.executable, "-c", program, *told],
        env={**os.environ, "RANK": "0"},
        cwd=ROOT,
        timeout=20 * PATIENCE,
        check=False,
    )
    assert done.returncode == signal.SIGTERM
    assert json.loads((tmp_path / "rank_0.exit").read_text())["signal"] == signal.SIGTERM
