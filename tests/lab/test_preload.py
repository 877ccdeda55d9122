"""`task.preload`: ranks that are forks of one process are what exec would have made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inspecting import proven_nodes
from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, RANK_SCRIPT, TORCHLESS, Controller, Launcher, Result
from tests.lab.waiting import wait_until

pytestmark = pytest.mark.tasks

STATE = PROGRAMS / "process_state.py"
ONE_NODE = ("cluster=lab", "cluster.only=[node1]", "cluster.nproc_per_node=2")
PRELOAD = "task.preload=true"
OTHER = {"SSH_CLIENT", "SSH_CONNECTION", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}
"""Variables that differ from run to run."""

ADDED = {"TORCHINDUCTOR_CACHE_DIR"}
"""A variable that torch._dynamo sets while it is imported, as by the first optimizer."""


@pytest.fixture
def torchless(on_lab: Launcher) -> Callable[..., Controller]:
    """Starts two ranks without torch on one node, forked from a process."""

    def start(*words: str, preload: str = "true", **env: str) -> Controller:
        environ = {"PYTHONPATH": TORCHLESS, **env}
        settings = [f"cluster.env.{name}={value}" for name, value in environ.items()]
        ranks = on_lab.rank_overrides(*words)
        return on_lab.start(*ONE_NODE, *settings, *ranks, f"task.preload={preload}", "grace_s=1")

    return start


def rank_records(lab: Lab, run: str) -> dict[int, dict[str, int]]:
    """Return what shims have recorded of the ranks that they started, by rank."""
    folder = f".runner/runs/{run}/node1/attempt_0"
    text = lab["node1"].sh(f"cat {folder}/rank_0.start {folder}/rank_1.start", check=False)
    found = [json.loads(line + "}") for line in text.split("}") if line.strip()]
    return dict(enumerate(found))


def is_forked(lab: Lab, run: str) -> bool:
    """Whether both ranks are children of one process, which is no shim."""
    records = rank_records(lab, run)
    assert len(records) == 2, records
    parents = {data["parent"] for data in records.values()}
    return len(parents) == 1 and parents.isdisjoint(data["shim"] for data in records.values())


def found(done: Result, rank: int) -> dict[str, Any]:
    """Return what a rank told."""
    text = done.log("node1", rank).splitlines()[-1].replace(done.folder.name, "RUN")
    data: dict[str, Any] = json.loads(text)
    environ = data["state"]["environ"]
    data["state"]["environ"] = {k: v for k, v in environ.items() if k not in OTHER | ADDED}
    return data


@pytest.mark.parametrize(
    ("form", "method"),
    [
        ("script", "fork"),
        pytest.param("module", "spawn", marks=pytest.mark.all),
        pytest.param("script", "forkserver", marks=pytest.mark.all),
    ],
)
def test_a_forked_rank_is_like_an_executed_one(
    form: str, method: str, lab: Lab, on_lab: Launcher
) -> None:
    """It finds the same in its process, draws its own random numbers, and computes the same."""
    forms = {
        "script": [f"task.script={STATE}"],
        "module": ["task.module=process_state", f"cluster.env.PYTHONPATH={PROGRAMS}"],
    }
    words = (*ONE_NODE, *forms[form])
    arguments = ("--", f"method={method}")
    forked, executed = on_lab(*words, PRELOAD, *arguments), on_lab(*words, *arguments)
    assert (forked.code, executed.code) == (0, 0), forked
    assert "task.preload" not in forked.err + forked.out, forked
    said = [" s, torch imported\n" in done.err for done in (forked, executed)]
    assert said == [True, False], (forked.err, executed.err)
    assert is_forked(lab, forked.folder.name)
    assert not is_forked(lab, executed.folder.name)
    for rank in (0, 1):
        ours, plain = found(forked, rank), found(executed, rank)
        assert ours["state"] == plain["state"]
        assert (ours["seeded"], ours["step"]) == (plain["seeded"], plain["step"])
        assert ours["loaded"] == plain["loaded"] == [[0, 1, 4, 9], [16, 25, 36, 49]]
    drawn = [found(done, rank)["drawn"] for done in (forked, executed) for rank in (0, 1)]
    for numbers in zip(*drawn, strict=True):
        assert len({str(number) for number in numbers}) == len(numbers), numbers


def test_a_program_that_sets_what_torch_reads_while_it_is_imported(
    lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """It is seen in its text, or at its first import: its setting holds as it would anywhere."""
    script = tmp_path / "train.py"
    show = """\
import os, torch
print("debug", torch.distributed.get_debug_level().name, os.getpid())
"""
    setting = 'os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\n'
    in_text = f"import os\n{setting}{show}"
    in_function = f"import os\ndef early():\n    {setting}early()\n{show}"
    for text, reason in (
        (in_text, "train.py sets TORCH_DISTRIBUTED_DEBUG, which an import reads; task.env."),
        (in_function, "TORCH_DISTRIBUTED_DEBUG is set before torch is imported; task.env."),
    ):
        script.write_text(text)
        done = on_lab(*ONE_NODE, PRELOAD, f"task.script={script}")
        assert done.code == 0, done
        assert done.err.count("runner: task.preload: ") == 1, done
        assert reason in done.log("node1", 0, "err"), done
        for rank in (0, 1):
            last = done.log("node1", rank).splitlines()[-1]
            record = rank_records(lab, done.folder.name)[rank]
            assert last == f"debug DETAIL {record['pid']}", done


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("threaded", "an imported module has started a thread of Python"),
        ("connected", "an imported module has opened a connection"),
        ("raising", "raising cannot be imported (RuntimeError: no such card)"),
        ("ending", "the fork server has ended"),
        ("absent", "absent cannot be imported (ModuleNotFoundError: No module named 'absent')"),
        pytest.param(
            "computing",
            "an imported module has started a thread, python, in libgomp",
            marks=(pytest.mark.all),
        ),
    ],
)
def test_ranks_are_executed_where_they_cannot_be_forked(
    name: str, reason: str, lab: Lab, torchless: Callable[..., Controller], tmp_path: Path
) -> None:
    """One line says why, and the run goes on."""
    (tmp_path / f"{name}.py").symlink_to(PROGRAMS / "preloads.py")
    if name == "absent":
        (tmp_path / f"{name}.py").unlink()
    real = name == "computing"
    path = f"{tmp_path}" if real else f"{tmp_path}:{TORCHLESS}"
    more = {"OMP_NUM_THREADS": "2"} if real else {}
    done = torchless("print=fine", preload=f"[torch,{name}]", PYTHONPATH=path, **more).wait()
    assert done.code == 0, done
    assert done.err.count("runner: task.preload: ") == 1, done
    line = f"runner: task.preload: each rank imports torch itself: {reason}"
    assert line in done.log("node1", 0, "err"), done
    assert not is_forked(lab, done.folder.name)


def test_what_an_import_sets_in_the_environment_is_kept(
    lab: Lab, torchless: Callable[..., Controller], tmp_path: Path
) -> None:
    """Where the rank has no value of its own."""
    (tmp_path / "setting.py").symlink_to(PROGRAMS / "preloads.py")
    path = f"{tmp_path}:{TORCHLESS}"
    done = torchless("env=SET_BY_IMPORT", preload="[setting]", PYTHONPATH=path).wait()
    assert done.code == 0, done
    assert [done.log("node1", rank) for rank in (0, 1)] == ["SET_BY_IMPORT=yes\n"] * 2, done
    assert is_forked(lab, done.folder.name)


LAST = """\
import os, sys, torch
class Last:
    def __del__(self):
        print("destroyed", flush=True)
last = Last()
file = open(f"{os.path.dirname(os.environ['RUNNER_METRICS'])}/last.{os.environ['RANK']}", "w")
file.write("last line")
if sys.argv[1] == "fails":
    raise ValueError("at the end")
"""


@pytest.mark.parametrize("end", ["succeeds", "fails"])
@pytest.mark.parametrize("form", ["script", "module"])
def test_a_program_ends_as_an_executed_one(
    form: str, end: str, lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """Its objects are destroyed and its files written; its traceback has its own frames alone."""
    (tmp_path / "last.py").write_text(LAST)
    program = f"task.script={tmp_path / 'last.py'}" if form == "script" else "task.module=last"
    path = f"cluster.env.PYTHONPATH={tmp_path}:{TORCHLESS}"
    one_rank = (*ONE_NODE[:2], "cluster.nproc_per_node=1")
    done = on_lab(*one_rank, program, path, PRELOAD, "--", end)
    assert done.code == (end == "fails"), done
    record = rank_records(lab, done.folder.name)[0]
    assert record["parent"] != record["shim"], done
    assert done.log("node1", 0) == "destroyed\n", done
    folder = f".runner/runs/{done.folder.name}/node1/attempt_0"
    assert lab["node1"].sh(f"cat {folder}/last.0") == "last line"
    errors = done.log("node1", 0, "err")
    assert ("ValueError: at the end" in errors) == (end == "fails"), errors
    assert "preload" not in errors, errors


def test_a_program_that_starts_again_does_so_from_its_beginning(
    on_lab: Launcher, tmp_path: Path
) -> None:
    """In its folder, with its environment: what it changes is not changed twice."""
    (tmp_path / "again.py").write_text(
        "import os\n"
        "def early():\n"
        "    os.environ['OMP_NUM_THREADS'] = str(int(os.environ['OMP_NUM_THREADS']) // 2)\n"
        "    os.chdir('/')\n"
        "early()\n"
        "import torch\n"
        "print(os.environ['OMP_NUM_THREADS'])\n"
    )
    settings = (f"cluster.env.PYTHONPATH={tmp_path}:{TORCHLESS}", "cluster.env.OMP_NUM_THREADS=16")
    done = on_lab(*ONE_NODE, "task.module=again", *settings, PRELOAD)
    assert done.code == 0, done
    assert [done.log("node1", rank) for rank in (0, 1)] == ["8\n"] * 2, done
    assert "OMP_NUM_THREADS is set before torch is imported" in done.log("node1", 0, "err"), done


def test_a_setting_for_a_later_import_of_the_list_is_told(
    lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """One in the text has ranks executed; one in a function has no effect, and a line says so."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "hub.py").write_text("import os\nCACHE = os.environ.get('HUB_CACHE')\n")
    setting = "os.environ['HUB_CACHE'] = '/data'"
    texts = {
        "text.py": f"import os, torch\n{setting}\nimport hub\nprint(hub.CACHE)\n",
        "function.py": f"import os, torch\ndef late():\n    {setting}\nlate()\nimport hub\n"
        "print(hub.CACHE)\n",
    }
    found, reasons = {}, []
    path = f"cluster.env.PYTHONPATH={tmp_path / 'library'}:{TORCHLESS}"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        done = on_lab(*ONE_NODE, f"task.script={tmp_path / name}", path, "task.preload=[hub]")
        assert done.code == 0, done
        assert done.err.count("runner: task.preload: ") == 1, done
        found[name] = (done.log("node1", 0), is_forked(lab, done.folder.name))
        reasons.append(done.log("node1", 0, "err"))
    assert found == {"text.py": ("/data\n", False), "function.py": ("None\n", True)}
    assert "text.py sets HUB_CACHE, which an import reads" in reasons[0]
    assert "HUB_CACHE is set after the first import, and hub has read it" in reasons[1]


@pytest.mark.parametrize("victim", ["parent", "shim", "pid"])
def test_a_killed_process_ends_its_ranks_and_the_run(
    victim: str, lab: Lab, torchless: Callable[..., Controller]
) -> None:
    """That of a fork server, of a rank's shim, or of a rank itself; nothing is left."""
    controller = torchless("print=here", "deaf", "sleep=600")
    controller.until_printed("here", times=2)
    wait_until(lambda: len(rank_records(lab, controller.run_id)) == 2, "records of ranks")
    assert is_forked(lab, controller.run_id)
    lab["node1"].kill(rank_records(lab, controller.run_id)[1][victim])
    done = controller.wait()
    assert done.code == 1, done
    assert "first failure: rank" in done.err, done
    assert proven_nodes(done.err) == 1, done


def test_ctrl_c_gives_ranks_their_time(lab: Lab, torchless: Callable[..., Controller]) -> None:
    """They get TERM, whatever signal the fork server has got; what is deaf to it is killed."""
    controller = torchless("print=here", "sleep=600")
    controller.until_printed("here", times=2)
    wait_until(lambda: len(rank_records(lab, controller.run_id)) == 2, "records of ranks")
    server = rank_records(lab, controller.run_id)[0]["parent"]
    lab["node1"].sh(f"kill -USR1 {server} && kill -QUIT {server} && kill -XCPU {server}")
    controller.send()
    done = controller.wait()
    assert done.code == 130, done
    assert {each["signal"] for each in done.result["ranks"].values()} == {15}, done
    assert proven_nodes(done.err) == 1, done


def test_stacks_of_a_forked_rank(on_lab: Launcher, torchless: Callable[..., Controller]) -> None:
    """They are those of its program."""
    controller = torchless("print=here", "sleep=600")
    controller.until_printed("here", times=2)
    shown = on_lab("stacks", controller.run_id)
    assert shown.code == 0, shown
    assert shown.out.count(RANK_SCRIPT) >= 2, shown
    assert "preload" not in shown.out, shown
    controller.send()
    controller.wait()


def test_a_training_run_has_the_same_results(on_lab: Launcher) -> None:
    """Bit for bit: the loss of each step that it prints."""
    words = (*ONE_NODE, "task=resnet18", "task.args.epochs=1")
    runs = [on_lab(*words, f"task.preload={value}") for value in ("true", "false")]
    assert [done.code for done in runs] == [0, 0], runs
    losses = [re.findall(r'"loss": \S+', done.log("node1", 0)) for done in runs]
    assert losses[0] == losses[1], losses
    assert len(losses[0]) > 1, runs
