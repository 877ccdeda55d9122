"""The page on command lines from elsewhere: each of ours asks for what theirs does, and runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from runner.cli.main import for_each_run, main
from runner.cli.translation import NO_COUNTERPART, on_the_page
from runner.control.assumed_facts import assumed_facts
from runner.core.codec import encode
from runner.core.model.plan import Plan
from runner.core.model.spec import LaunchRequest
from runner.core.planning.build_plan import build_plan
from tests.lab.lab import Lab, LabFactory
from tests.lab.launch_lines import LaunchLine, read_filter, read_line
from tests.lab.launching import ROOT, Launcher

PAGE = (ROOT / "docs" / "command-lines.md").read_text(encoding="utf-8")
SUBMITS = "cluster=hpc"
"""How lines of ours begin that submit a job; `test_slurm_scripts.py` runs them."""

FILES = dict(re.findall(r"^```yaml\n# (conf/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PLACES = {
    "[imagenet-folder with train and val folders]": "/data/imagenet",
    "<DATA_DIR>": "/data/imagenet",
    "/workspace/data/": "/data/",
    "/workspace/examples/": "examples/",
    "$(which fairseq-train)": "fairseq_cli.train",
    "IP_OF_NODE0": "gpu1",
    "FREEPORT": "29500",
    "NUM_GPUS_YOU_HAVE": "8",
    "$NUM_CUDA_DEVICES": "8",
    "$VERSION": "0.2.0",
    "master_node_ip_address": "gpu1",
}
"""What a reader fills in on the left, as it is on the right."""

SHELL = {
    **{"$NUM_TRAINERS": "8", "$WORKERS_PER_NODE": "8", "$NUM_NODES": "2", "$JOB_ID": "1"},
    **{"$HOST_NODE_ADDR": "gpu1:29400", "$MASTER_ADDR": "gpu1"},
    **{"$ETCD_HOST": "etcd1", "$ETCD_PORT": "2379"},
}
"""What a shell fills in."""

STUB = """\
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
told = {name: os.environ[name] for name in os.environ if name in names or name.startswith(OTHERS)}
print(json.dumps({"argv": sys.argv[1:], "env": told}))
""".replace("OTHERS", '("SLURM_", "OMPI_")')


class Row(NamedTuple):
    """One row of the page's tables."""

    family: str
    theirs: str
    ours: str

    @property
    def words(self) -> list[str]:
        """Ours, less the name of the program."""
        return shlex.split(self.ours)[1:]

    @property
    def filled(self) -> str:
        """Theirs, with its blanks filled in."""
        text = self.theirs
        for there, here in PLACES.items():
            text = text.replace(there, here)
        return text

    @property
    def asked(self) -> LaunchLine:
        """What theirs asks for."""
        return read_line(shlex.split(self.filled))


def rows() -> list[Row]:
    """Return the rows of the page."""
    found, family = [], ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            family = line[3:]
        elif line.startswith("| `"):
            theirs, ours, *_ = line.split(" | ")
            found.append(Row(family, theirs.split("`")[1], ours.strip("` |")))
    return found


ROWS = rows()
EACH = pytest.mark.parametrize("row", ROWS, ids=[row.ours[7:70] for row in ROWS])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the files of the page, in which its reader stands."""
    folder = tmp_path / "project"
    write_project(folder)
    monkeypatch.chdir(folder)
    return folder


def write_project(folder: Path) -> None:
    """Write the files of the page, and every program that its lines name."""
    programs = set(re.findall(r"[\w./-]+\.py", " ".join(row.ours for row in ROWS)))
    programs |= {"pretrain_bert.py", "fairseq_cli/train.py", PLACES["$(which fairseq-train)"]}
    texts = dict.fromkeys(programs, STUB)
    for name, text in {**FILES, **texts}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def test_the_page_has_every_family() -> None:
    """Each table is read whole, and linked."""
    assert len(ROWS) == PAGE.count("\n| `")
    assert len({row.family for row in ROWS}) == PAGE.count("\n| there | here |")
    for page in ("README.md", "docs/programs.md"):
        assert "command-lines.md" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.usefixtures("project")
def test_the_files_of_a_container_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """As the line above them."""
    (row,) = (row for row in ROWS if "image=torchelastic" in row.ours and "etcd" in row.ours)
    files = ["cluster=mine", "container=elastic", "rendezvous=etcd1", "task=elastic"]
    assert f"`runner {' '.join(files)}`" in PAGE
    planned = []
    for words in (files, row.words):
        assert main(["dry_run=[offline,json]", "run_id=one", *words]) == 0, capsys.readouterr().err
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        planned.append([node["command"] for node in nodes])
    assert planned[0] == planned[1]


@EACH
@pytest.mark.usefixtures("project")
def test_ours_asks_for_what_theirs_does(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    """The same program with the same arguments, nodes, ranks, port, rendezvous and restarts."""
    assert_plan_is_as_asked(row.words, row.asked, capsys)


TRANSLATED = (
    r"(\S+=\S+ )*(torchrun|python|accelerate launch|deepspeed) (?!.*--(config_file|.*clude)\b)"
)
"""Lines of these are answered with ours, and the others with the name of the page."""


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("row", [row for row in ROWS if row.theirs[0] != "#"])
def test_theirs_typed_here_names_ours(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and a line that asks for the same; or the page that has it."""
    named = typed_here(row.filled, capsys, row.family)
    assert bool(named) == bool(re.match(TRANSLATED, row.theirs))
    if named:
        cluster = [] if chooses_cluster(named) else [row.words[0]]
        assert_plan_is_as_asked([*cluster, *named], row.asked, capsys)


def typed_here(theirs: str, capsys: pytest.CaptureFixture[str], part: str = "") -> list[str]:
    """Return the words that are named in place of a line from elsewhere; none but the page's."""
    for there, here in SHELL.items():
        theirs = theirs.replace(there, here)
    assert main(shlex.split(theirs)) == 2
    said = capsys.readouterr().err
    named = re.search(r"^    here that is: runner (.*)$", said, re.MULTILINE)
    part = "" if NO_COUNTERPART in said else part  # it is about one flag
    assert named or f"{on_the_page(part)}\n" in said, said
    words = shlex.split(named[1]) if named else []
    is_open = bool(words) and not chooses_cluster(words)
    assert ("cluster=NAME chooses the machines" in said) == is_open
    return words


def chooses_cluster(words: list[str]) -> bool:
    """Whether a line of ours says where it runs."""
    settings = words[: words.index("--")] if "--" in words else words
    return any(word.startswith("cluster=") for word in settings)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("theirs", "ranks"),
    [
        ("torchrun --nnodes=2 train.py", 1),
        ("torchrun --nproc_per_node=auto train.py", 1),
        ("cluster=mine torchrun --nproc_per_node=auto train.py", 8),
        ("torchrun --standalone --nnodes=2 --nproc_per_node=3 train.py", 3),
        ("torchrun --nnodes=1:1 --master_addr=localhost --master_port=0 train.py", 1),
        ("torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:0 --nproc_per_node=2 train.py", 2),
        ("torchrun --nnodes=2 --rdzv_backend=etcd-v2 --rdzv_endpoint=etcd1 train.py", 1),
        ("torchrun --max_restarts=3 --master_port=1234 train.py", 1),
        ("torchrun --nnodes=2 --nproc_per_node=2 --max_restarts=3 train.py", 2),
        ("torchrun --nproc_per_node=2 --role=a,b --rdzv_conf=timeout=5,x=y train.py", 2),
        ("torchrun --nproc_per_node=2 --monitor_interval=0.5 --start_method=fork train.py", 2),
        ("torchrun --nproc_per_node=2 --no_python './my (prog)' -x", 2),
        ("torchrun --nproc_per_node=2 -m package.train --lr 1", 2),
        ("torchrun --nproc_per_node=2 -- train.py --lr 1", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py", 2),
        ("CUDA_VISIBLE_DEVICES=2,3 accelerate launch train.py", 2),
        ("CUDA_VISIBLE_DEVICES=2,3 python train.py", "plain"),
        ("CUDA_VISIBLE_DEVICES= python train.py", "plain"),
        ("NOTE='a, \"b\"' X=1 E= Y='${Z}' torchrun --nproc_per_node=2 train.py", 2),
        ("MASTER_ADDR=localhost MASTER_PORT=0 RANK=0 WORLD_SIZE=1 python train.py", "plain"),
        ("python -u -m torch.distributed.run --nproc_per_node=2 train.py", 2),
        ("python3 -W ignore -m torch.distributed.launch train.py", 1),
        ("./venv/bin/python train.py", "plain"),
        ("python -m package.train", "plain"),
        ("accelerate launch train.py", 1),
        ("accelerate launch --gpu_ids=0,1 train.py", 2),
        ("accelerate launch --num_machines=1 --num_processes=4 train.py", 4),
        ("deepspeed train.py", 1),
        ("deepspeed --num_gpus=4 --no_local_rank train.py", 4),
        ("deepspeed --num_nodes=2 --num_gpus=2 train.py", 2),
        ("deepspeed --hostfile=workers train.py", 8),
        ("train.py -- --lr 1 cluster=lab", 8),
        ("--nnodes 2 train.py", 8),
    ],
)
def test_what_is_named_is_planned(
    theirs: str, ranks: int | str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With as many processes on each node as the launcher would start."""
    named = typed_here(theirs, capsys)
    assert (
        main(
            [
                "dry_run=[offline,json]",
                *([] if chooses_cluster(named) else ["cluster=mine"]),
                *named,
            ]
        )
        == 0
    ), capsys.readouterr().err
    for node in json.loads(capsys.readouterr().out)["nodes"]:
        assert given_to(node).flags.get("nproc_per_node", "plain") == str(ranks)
        assert len(node["ranks"]) in (0, 1 if ranks == "plain" else ranks)  # 0: torch assigns them


def assert_plan_is_as_asked(
    words: list[str], asked: LaunchLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each node of a dry run of ours is told what theirs says."""
    nodes = planned_nodes(words, asked, capsys)
    for number, node in enumerate(nodes):
        given = given_to(node)
        assert_same_program(asked, given, number)
        assert_same_flags(asked, given, node)
        if len(nodes) > 1 and "node_rank" in given.flags:
            assert given.flags["node_rank"] == str(number)
    if "$" not in asked.flags.get("nnodes", "$"):
        planned = given_to(nodes[0]).flags.get("nnodes", str(len(nodes)))
        assert planned == asked.flags["nnodes"]
    gpus = {node["node"]: set(node["gpus"]) for node in nodes}
    if included := read_filter(asked.flags.get("include", "")):
        assert gpus == {name: set(numbers) for name, numbers in included.items()}
    if excluded := read_filter(asked.flags.get("exclude", "")):
        assert gpus == {"worker-1": {0, 1, 2, 3}, "worker-2": {1, 2, 3}}
        assert not any(set(numbers) & gpus.get(name, set()) for name, numbers in excluded.items())


def planned_nodes(
    words: list[str], asked: LaunchLine, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    """Plan ours without asking any host; a job of Slurm is planned by its first node."""
    if words[0] != SUBMITS:
        assert main(["dry_run=[offline,json]", *words]) == 0, capsys.readouterr().err
        return list(json.loads(capsys.readouterr().out)["nodes"])
    assert main(["dry_run=offline", *words]) == 0, capsys.readouterr().err
    script = capsys.readouterr().out
    assert f"#SBATCH --nodes={asked.flags['nnodes']}\n" in script
    gpus = asked.flags.get("gres", "gpu:").partition(":")[2]
    assert f"#SBATCH --gpus-per-node={gpus}\n" in script or not gpus
    plans: list[Plan] = []

    def plan(request: LaunchRequest) -> int:
        count = request.spec.slurm.nnodes if request.spec.slurm else 0
        spec = request.spec.on_nodes([f"node{number}" for number in range(1, count + 1)])
        plans.append(build_plan(*assumed_facts(spec)[:2]))
        return 0

    assert for_each_run(words, plan) == 0, capsys.readouterr().err
    return list(encode(plans[0])["nodes"])


def given_to(node: dict[str, Any]) -> LaunchLine:
    """Read the command that a node is given."""
    return read_line([Path(node["command"][0]).name, *node["command"][1:]])


def assert_same_program(asked: LaunchLine, given: LaunchLine, number: int) -> None:
    """Theirs is that of rank 0; ours adds a local rank, as DeepSpeed does, and the master."""
    added = r"--local[_-]rank=.*|--master_(addr|port)=.*"
    assert Path(given.program) == Path(asked.program)
    args = [word for word in given.args if not re.fullmatch(added, word)]
    typed = re.sub("(--rank[= ]|-nr )0", rf"\g<1>{number}", " ".join(asked.args))
    assert " ".join(args) == typed


def assert_same_flags(asked: LaunchLine, given: LaunchLine, node: dict[str, Any]) -> None:
    """Where theirs leaves one open, ours may say what it likes."""
    for name in ("image", "shm_size", "ipc"):
        assert given.flags.get(name) == asked.flags.get(name), name
    for name in ("nproc_per_node", "master_port", "rdzv_backend", "max_restarts"):
        wanted = asked.flags.get(name, "$")
        wanted = str(len(node["gpus"]) or 1) if wanted == "gpu" else wanted
        if "$" not in wanted and name in given.flags:
            assert given.flags[name] == wanted, name
    if "CUDA_VISIBLE_DEVICES" in asked.env:
        assert node["env"]["CUDA_VISIBLE_DEVICES"] == asked.env["CUDA_VISIBLE_DEVICES"]


@pytest.fixture(scope="module")
def hosts(lab_factory_for_session: LabFactory) -> Iterator[Lab]:
    """Two hosts, for the first two nodes of the page's clusters."""
    with lab_factory_for_session(n=2) as lab:
        yield lab


@pytest.fixture
def reader(hosts: Lab, launcher: Launcher) -> Launcher:
    """Somebody who has the files of the page, and two hosts without a GPU."""
    write_project(launcher.folder)
    for name, nodes in (("mine", ("gpu1", "gpu2")), ("workers", ("worker-1", "worker-2"))):
        cluster = hosts.cluster()
        cluster["nodes"] = dict(zip(nodes, cluster["nodes"].values(), strict=True))
        (launcher.conf / "cluster" / f"{name}.yaml").write_text(yaml.safe_dump(cluster))
    return launcher


TRIED = {
    "--nproc_per_node=8 --nnodes=2": True,
    "NUM_GPUS_YOU_HAVE": True,
    "$(which fairseq-train)": False,
    "--multiprocessing-distributed --world-size 2": True,
    "-nr 0": False,
    "accelerate launch --num_machines 2": False,
    "fabric run": False,
    "deepspeed --num_nodes=2": False,
    "colossalai run": False,
    "OMPI_COMM_WORLD_RANK": False,
    "--num-layers 24": False,
    "-j 2x4": False,
}
"""One line of each family by what it has, and whether `make test` runs it."""

ALSO_CALLED = {
    **{"OMPI_COMM_WORLD_RANK": "RANK", "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE"},
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
}
"""Variables of other launchers, by those that say the same here."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=() if now else pytest.mark.all) for part, now in TRIED.items()],
)
def test_ours_runs(part: str, reader: Launcher) -> None:
    """Every rank has the place and the arguments that theirs would give it."""
    row = next(row for row in ROWS if part in f"{row.theirs} {row.ours}")
    words = [word for word in row.words if "gpus_per_node=" not in word]  # hosts have none
    done = reader(*words, seconds=200)
    assert done.code == 0, done
    plan, asked = json.loads((done.folder / "plan.json").read_text()), row.asked
    places = [(node, local) for node in plan["nodes"] for local in range(len(node["ranks"]))]
    each = asked.flags.get("nproc_per_node", "1").replace("gpu", "1")  # hosts have none
    assert len(places) == int(each) * len(plan["nodes"])
    passes_rank = "local_rank" in row.ours or "entry=launch" in row.ours
    master = {"MASTER_ADDR": plan["master_addr"], "MASTER_PORT": str(plan["master_port"])}
    for rank, (node, local) in enumerate(places):
        said = json.loads(done.log(node["node"], rank).splitlines()[-1])
        place = {"RANK": rank, "LOCAL_RANK": local, "NODE_RANK": plan["nodes"].index(node)}
        wanted = {**master, **{name: str(number) for name, number in place.items()}}
        wanted |= {"WORLD_SIZE": str(len(places)), "LOCAL_WORLD_SIZE": each}
        told = said["env"]
        assert told == {name: wanted[ALSO_CALLED.get(name, name)] for name in told}
        assert told.keys() >= {"RANK", "WORLD_SIZE", *master}
        assert (part in told) == (part in ALSO_CALLED)
        given_rank = [word for word in said["argv"] if re.match("--local[_-]rank=", word)]
        assert [word.partition("=")[2] for word in given_rank] == [str(local)] * passes_rank
        typed = " ".join(said["argv"]).replace(":".join(master.values()), "gpu1:29500")
        given = LaunchLine({}, {}, asked.program, tuple(typed.split(" ")) if typed else ())
        assert_same_program(asked, given, place["NODE_RANK"])
