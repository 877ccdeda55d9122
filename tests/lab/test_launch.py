"""A launch on real hosts over SSH, from the command line to the exit code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, ROOT, Launcher, Result


@pytest.mark.over_openssh
def test_env_shows_ranks_in_yaml_order_with_mixed_nproc(lab: Lab, on_lab: Launcher) -> None:
    """Global ranks follow the YAML, also with different numbers of ranks per node."""
    done = on_lab.succeed("cluster=lab", "task=env", "cluster.nodes.node2.nproc_per_node=2")
    shown = {}
    for line in done.out.splitlines():
        found = re.match(
            r"\[(\w+):(\d+)\] host=(\w+) rank=(\d+) local_rank=(\d+) world_size=3", line
        )
        assert found, line
        assert (found[1], found[2]) == (found[3], found[4])
        shown[int(found[4])] = (found[1], int(found[5]))
    assert shown == {0: ("node1", 0), 1: ("node2", 0), 2: ("node2", 1)}
    assert f"master={lab['node1'].address}:" in done.out
    assert done.result["state"] == "succeeded"
    assert "0 processes left" in done.err


def test_any_script_with_any_argument(on_lab: Launcher, tmp_path: Path) -> None:
    """A plain third-party script gets its arguments to the letter, and its exit is success."""
    script = tmp_path / "show.py"
    script.write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    awkward = ["--n", "--log", "$HOME", "$$", "a b", "it's", '"', "line\nbreak", "*", "-x", ""]
    awkward.append("${local_rank}")
    task = {"defaults": ["base"], "script": str(script), "args_after": awkward}
    (on_lab.conf / "task").mkdir()
    written = json.dumps(task).replace("${", "\\\\${")  # OmegaConf's own escape, in JSON's
    (on_lab.conf / "task" / "awkward.yaml").write_text(written)
    done = on_lab.succeed("cluster=lab", "task=awkward")
    want = [word.replace("${local_rank}", "0") for word in awkward]
    for node, rank in (("node1", 0), ("node2", 1)):
        assert json.loads(done.log(node, rank)) == want


@pytest.mark.promise(1)
def test_every_line_of_a_flood_arrives_whole_and_in_order(on_lab: Launcher) -> None:
    """2 ranks × 40,000 lines of 100 bytes."""
    assert_flood(on_lab.run_ranks("lines=40000", "cluster=lab", seconds=150), 40_000)


def assert_flood(done: Result, count: int) -> None:
    """Both ranks' lines are on the console and on record."""
    assert done.code == 0, done.err[-2000:]
    for rank, node in enumerate(("node1", "node2")):
        want = [f"{rank} {number:08d} ".ljust(99, "x") for number in range(count)]
        prefix = f"[{node}:{rank}] "
        shown = [line[len(prefix) :] for line in done.out.splitlines() if line.startswith(prefix)]
        assert shown == want
        assert done.log(node, rank).splitlines() == want


@pytest.mark.promise(5)
def test_records_stand_in_the_run_folder(on_lab: Launcher) -> None:
    """Configuration, plan, events, result and logs; `latest` points to it; no more."""
    words = ("cluster=lab", "cluster.env.WHO=${oc.env:HOME}", "sample_s=off")
    done = on_lab.run_ranks("print=hi", *words)
    assert done.code == 0, done
    names = "config.yaml overrides.yaml plan.json events.jsonl result.json logs"
    empty = "metrics.jsonl"  # the logs have none
    found = {path.name for path in done.folder.iterdir()}
    assert found == {*names.split(), empty, ".gitignore"}
    overrides = yaml.safe_load((done.folder / "overrides.yaml").read_text())
    assert "cluster.env.WHO=${oc.env:HOME}" in overrides
    assert "${oc.env:HOME}" in (done.folder / "config.yaml").read_text()
    plan = json.loads((done.folder / "plan.json").read_text())
    assert [node["node"] for node in plan["nodes"]] == ["node1", "node2"]
    assert done.result["run_id"] == plan["run_id"] == done.folder.name
    assert (done.folder.parent / "latest").resolve() == done.folder
    assert {path.name for path in on_lab.folder.iterdir()} == {"conf", "runs"}
    kinds = [event["kind"] for event in done.events]
    assert kinds.count("rank_exited") == kinds.count("rank_started") == 2


@pytest.mark.promise(9)
def test_dry_run_contacts_hosts_and_leaves_nothing(lab: Lab, on_lab: Launcher) -> None:
    """It prints what each host would be told, and writes nothing anywhere."""
    files = f"find ~ /tmp -path {ROOT} -prune -o -print | sort"  # other tests compile what is there
    before = {name: host.sh(files) for name, host in lab.hosts.items()}
    done = on_lab.run_ranks("env=RANK", "cluster=lab", "dry_run=true")
    assert done.code == 0, done
    assert "\n# node2" in done.out
    assert "GLOO_SOCKET_IFNAME=eth0" in done.out
    assert "NCCL_SOCKET_IFNAME='=eth0'" in done.out
    assert {path.name for path in on_lab.folder.iterdir()} == {"conf"}
    assert {name: host.sh(files) for name, host in lab.hosts.items()} == before


@pytest.mark.promise(7)
def test_secrets_reach_the_ranks_and_nothing_else(lab: Lab, on_lab: Launcher) -> None:
    """A secret is in the ranks' environment: on no disk, in no argv, log or record."""
    secret = "s3cr3t-\"'$x"
    ranks = on_lab.rank_overrides("touch=/dev/shm/up", "wait=/dev/shm/go", "env=TOKEN")
    running = on_lab.start("cluster=lab", "cluster.secrets=[TOKEN]", *ranks, env={"TOKEN": secret})
    for name in ("node1", "node2"):
        running.until(lambda name=name: lab[name].sh("ls /dev/shm/up", check=False), "the ranks")  # type: ignore[misc]
        assert "s3cr3t" not in "".join(process.cmdline for process in lab[name].processes())
        assert not lab[name].sh("grep -rl s3cr3t ~ /tmp/runner-* || true").strip()
        lab[name].sh("touch /dev/shm/go")
    done = running.wait()
    assert done.code == 0, done
    assert f"TOKEN={secret}" in done.out
    for path in done.folder.rglob("*"):
        assert not path.is_file() or "logs" in path.parts or "s3cr3t" not in path.read_text()


@pytest.mark.all
@pytest.mark.promise(13)
@pytest.mark.parametrize("kind", ["ssh", "openssh"])
def test_odd_hosts(lab_factory: LabFactory, launcher: Launcher, kind: str) -> None:
    """Names that resolve to 127.0.1.1, a fish login shell, banners: one launch over all of them."""
    shell = {"node2": "/usr/bin/fish"}
    with lab_factory(2, is_loopback=True, login_shell=shell, rc_banner=True) as lab:
        lab.write_cluster(launcher.conf, transport=kind)
        words = ("task=collectives", "task.args.mode=smoke", "task.args.seconds=1")
        one_core = "cluster.env.OMP_NUM_THREADS=1"  # each believes that it has all of them
        launcher.succeed("cluster=lab", *words, one_core, seconds=120)


@pytest.mark.all
def test_the_controllers_machine_as_one_of_the_nodes(lab: Lab, launcher: Launcher) -> None:
    """This machine takes part by `transport: local`, on the subnet it shares with the rest."""
    nodes = {"here": {"transport": "local"}, "node1": {"host": lab["node1"].address}}
    cluster = lab.cluster(names=["node1"])
    cluster["nodes"] = nodes
    (launcher.conf / "cluster" / "mixed.yaml").write_text(yaml.safe_dump(cluster))
    done = launcher.succeed("cluster=mixed", "task=env", PLAIN_ENTRY)
    assert f"master={lab.address}:" in done.out
    assert "[here:0] " in done.out
    assert "[node1:1] host=node1" in done.out


def test_setup_brings_the_python_of_the_task(lab: Lab, on_lab: Launcher) -> None:
    """Where it is found nowhere else, that of our processes is named beside it."""
    python = f"mkdir env && ln -s {sys.executable} env/env-python"
    for name in ("node1", "node2"):
        lab[name].sh(f"{python} && echo 'PATH=~/env:$PATH' > env/activate")
    setup = "cluster.setup=['source ~/env/activate']"
    words = ("cluster=lab", "cluster.python=env-python", setup, *on_lab.rank_overrides("print=up"))

    without = on_lab(*words)
    done = on_lab(*words, f"cluster.host_python={sys.executable}")

    assert without.code == 3, without
    assert "there is no env-python on its PATH" in without.err
    assert "set cluster.host_python to a Python 3.8 or newer" in without.err
    assert (done.code, done.out.count("] up")) == (0, 2), done


@pytest.mark.promise(2)
def test_the_words_of_another_engine(on_lab: Launcher) -> None:
    """Its ranks are our children, so deaf ones are killed; what it refuses it says itself."""
    prefix = ("cluster=lab", "grace_s=2", "container.prefix=[/usr/bin/env,PLACE=inside]")
    ranks = on_lab.rank_overrides("env=PLACE", "deaf", "daemon", "print=up", "sleep=600")
    controller = on_lab.start(*prefix, *ranks)
    controller.until_printed("] up", 2)
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert proven_nodes(done.err) == 2, done
    assert "PLACE=inside\n" in done.log("node2", 1)
    refused = on_lab(*prefix[:2], "container.prefix=[/usr/bin/env,--nv]", *ranks)
    assert refused.code == 3, refused
    assert "/usr/bin/env cannot run /usr/bin/env --nv: " in refused.err, refused
