"""Composed values become a `Spec`, or all problems are reported at once."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from runner.config.schema import RunnerConfig
from runner.config.spec_builder import build_spec
from runner.config.task import new_run_id, program_name
from runner.config.validation import SpecInputs
from runner.core.errors import ConfigError
from runner.core.model.spec import Deploy, DryRun, Node, PortRange, Secret, Spec, Ssh, Task

DEFAULTS: dict[str, Any] = {
    "run_id": "run-1",
    "run_dir": "runs/run-1",
    "cluster.nodes": {"gpu1": {}},
    "cluster.host_python": "python3",
    "task.script": "train.py",
}


def asked(
    changes: dict[str, Any], environ: dict[str, str] | None = None, cwd: str = "/"
) -> SpecInputs:
    """Return the shipped defaults, one node, one script, and `changes` by full key."""
    values = dataclasses.asdict(RunnerConfig())
    for key, value in {**DEFAULTS, **changes}.items():
        *path, last = key.split(".")
        place = values
        for part in path:
            place = place[part]
        place[last] = copy.deepcopy(value)
    return SpecInputs(values, cluster="lab", task="train", cwd=cwd, environ=environ or {})


def spec_of(changes: dict[str, Any], environ: dict[str, str] | None = None) -> Spec:
    """Return the `Spec` of the defaults with `changes`."""
    return build_spec(asked(changes, environ), [])[0]


def problems_of(changes: dict[str, Any], environ: dict[str, str] | None = None) -> list[str]:
    """Return what is wrong with `changes`, as it is printed."""
    with pytest.raises(ConfigError) as caught:
        build_spec(asked(changes, environ), [])
    return [str(problem) for problem in caught.value.problems]


def test_defaults_make_a_spec() -> None:
    """One node and one program are enough; everything else has a default."""
    spec, options = build_spec(asked({}), [])
    assert spec == Spec(
        run_id="run-1",
        cluster="lab",
        nodes=(Node(name="gpu1", host="gpu1"),),
        task=Task(name="train", kind="script", target="train.py"),
        project="/",
        deploy=Deploy(enabled=True, max_mb=200, keep=3, fan_out="auto"),
    )
    assert options == {
        "dry_run": DryRun.OFF,
        "plan_as_json": False,
        "run_dir": Path("/runs/run-1"),
        "ui": "auto",
        "console_ranks": None,
        "sweep_parallel": 1,
        "sweep_one_job": False,
    }


def test_every_key_of_a_cluster_reaches_the_spec(tmp_path: Path) -> None:
    """What the YAML says is what the plan gets."""
    key = tmp_path / "key"
    key.touch()
    spec = spec_of(
        {
            "cluster.backend": "gloo",
            "cluster.gpus_per_node": 4,
            "cluster.nproc_per_node": 2,
            "cluster.master_port": "29500-29600",
            "cluster.ssh.user": "ada",
            "cluster.ssh.port": 2222,
            "cluster.ssh.key": str(key),
            "cluster.ssh.jump": "bastion, root@inner",
            "cluster.ssh.host_keys": "accept-new",
            "cluster.ssh.connect_timeout": 3,
            "cluster.python": "/opt/python",
            "cluster.setup": ["module load cuda", "conda activate x"],
            "cluster.project": "~/code",
            "cluster.workdir": "/scratch/runs",
            "deploy.max_mb": 5,
            "deploy.keep": 0,
            "deploy.fan_out": False,  # as YAML reads off
            "grace_s": 1,
            "lost_s": 2,
            "disconnect_s": 3.5,
        }
    )
    assert spec == Spec(
        run_id="run-1",
        cluster="lab",
        nodes=(Node(name="gpu1", host="gpu1", gpu_count=4, nproc=2),),
        task=Task(name="train", kind="script", target="train.py"),
        master_port=PortRange(29500, 29600),
        backend="gloo",
        ssh=Ssh(
            user="ada",
            port=2222,
            key=str(key),
            jump=("bastion", "root@inner"),
            host_keys="accept-new",
            connect_timeout=3.0,
        ),
        python="/opt/python",
        setup=("module load cuda", "conda activate x"),
        project="~/code",
        workdir="/scratch/runs",
        deploy=Deploy(enabled=False, max_mb=5, keep=0, fan_out="off"),
        grace_s=1.0,
        lost_s=2.0,
        disconnect_s=3.5,
    )


@pytest.mark.parametrize(
    ("rule", "ports"),
    [
        ("auto", PortRange()),
        (None, PortRange()),
        (29500, PortRange(29500, 29500)),
        ("29500", PortRange(29500, 29500)),
        ("29500-29600", PortRange(29500, 29600)),
        ("1 - 65535", PortRange(1, 65535)),
    ],
)
def test_port_rules(rule: object, ports: PortRange) -> None:
    """A port, a range, or any free one."""
    assert spec_of({"cluster.master_port": rule}).master_port == ports


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"cluster.backend": "ncll"},
            (
                "cluster.backend: 'ncll' is not legal; choose auto, nccl or gloo\n"
                "    did you mean nccl?"
            ),
        ),
        (
            {"cluster.transport": "telnet"},
            "cluster.transport: 'telnet' is not legal; choose ssh or local",
        ),
        (
            {"cluster.ssh.host_keys": "no"},
            "cluster.ssh.host_keys: 'no' is not legal; choose strict or accept-new",
        ),
        (
            {"disconnect_s": "soon"},
            "disconnect_s: must be a number of seconds, or never, not 'soon'",
        ),
        (
            {"torchrun.max_restarts": 2},
            (
                "torchrun.max_restarts: with a static rendezvous torchrun cannot restart the "
                "ranks\n"
                "    set relaunch.max=2 in its place, or choose rendezvous=c10d"
            ),
        ),
        *(
            (
                {"task.preload": word},
                (
                    f"task.preload: must be true, false or a list of modules, not '{word}'\n"
                    "    such as [torch, torch._dynamo]"
                ),
            )
            for word in ("yes", "maybe", "torch")
        ),
        ({"pull_outputs": "yes"}, "pull_outputs: 'yes' is not legal; choose auto or never"),
        ({"deploy.max_mb": 0}, "deploy.max_mb: must be a whole number from 1, not 0"),
        ({"deploy.keep": -1}, "deploy.keep: must be a whole number from 0, not -1"),
        ({"deploy.fan_out": True}, "deploy.fan_out: 'true' is not legal; choose auto or off"),
        ({"ui": "rich"}, "ui: 'rich' is not legal; choose auto, plain or raw"),
        (
            {"dry_run": "maybe"},
            "dry_run: 'maybe' is not legal; choose false, true, offline or json",
        ),
        (
            {"dry_run": [False, "json"]},
            "dry_run: must be one mode, or [offline, json], not [False, 'json']",
        ),
        (
            {"task.args_style": "click"},
            "task.args_style: 'click' is not legal; choose argparse, equals, hydra or raw",
        ),
        (
            {"lost_s": float("nan")},
            "lost_s: must be a positive number of seconds, not nan",
        ),
        (
            {"grace_s": 0},
            "grace_s: must be a positive number of seconds, not 0",
        ),
        (
            {"cluster.nproc_per_node": 0},
            "cluster.nproc_per_node: must be a whole number from 1, or auto, not 0",
        ),
        (
            {"cluster.gpus_per_node": 1.5},
            "cluster.gpus_per_node: must be a whole number from 0, or auto, not 1.5",
        ),
        (
            {"cluster.master_port": "29600-29500"},
            (
                "cluster.master_port: must be auto, a port such as 29500 or a range such as "
                "29500-29600, not '29600-29500'\n"
                "    ports go from 1 to 65535, the first before the last"
            ),
        ),
        (
            {"cluster.ssh.port": 70000},
            "cluster.ssh.port: must be a port from 1 to 65535, not 70000",
        ),
        ({"cluster.ssh.key": "/no/key"}, "cluster.ssh.key: there is no file /no/key"),
        ({"cluster.ssh.config": "/no/config"}, "cluster.ssh.config: there is no file /no/config"),
        (
            {"cluster.workdir": "a\nb"},
            r"cluster.workdir: must be a text of one line, not 'a\nb'",
        ),
        ({"cluster.python": ""}, "cluster.python: must be a text of one line, not ''"),
        ({"cluster.setup": [["x"]]}, "cluster.setup: must be a list of texts, not [['x']]"),
        (
            {"console_ranks": [0, -1]},
            "console_ranks: must be all, or a list of ranks such as [0, 3], not [0, -1]",
        ),
        (
            {"run_id": "A_b"},
            (
                "run_id: 'A_b' is not legal; use up to 63 of a-z, 0-9 and '-', no '-' in front\n"
                "    leave it out for a generated one"
            ),
        ),
        ({"run_id": "latest"}, "run_id: latest is the name of the last run, whichever that is"),
        (
            {"cluster.env": {"A-B": 1}},
            "cluster.env.A-B: 'A-B' is no name for an environment variable",
        ),
        (
            {"task.env": {"RUNNER_NODE": None}},
            "task.env.RUNNER_NODE: RUNNER_NODE cannot be taken out: the runner finds a run by it",
        ),
        (
            {"task.env": {"A": [1]}},
            "task.env.A: must be a text, a number or a bool, not [1]",
        ),
        (
            {"task.env": {"A": float("inf")}},
            "task.env.A: must be a text, a number or a bool, not inf",
        ),
        (
            {"cluster.env": {"MASTER_PORT": 1}},
            "cluster.env.MASTER_PORT: MASTER_PORT cannot be set: cluster.master_port chooses it",
        ),
        (
            {"cluster.env": {"PET_NNODES": 1}},
            (
                "cluster.env.PET_NNODES: PET_NNODES cannot be set: "
                "PET_ variables steer torchrun, and the plan does that"
            ),
        ),
        (
            {"cluster.pass_env": ["RANK"]},
            "cluster.pass_env: RANK cannot be set: the launcher of the ranks sets it",
        ),
        (
            {"task.script": None},
            (
                "task: there is no program; set task.module, task.script or task.command\n"
                "    such as task.script=train.py"
            ),
        ),
        (
            {"task.module": "train"},
            (
                "task: there is more than one program: module and script\n"
                "    task.module=null removes one"
            ),
        ),
        (
            {"task.script": None, "task.module": "train.py"},
            (
                "task.module: 'train.py' is no module name such as package.train\n"
                "    a file is task.script=train.py"
            ),
        ),
        (
            {"task.script": None, "task.command": "echo 'a"},
            'task.command: "echo \'a" cannot be split into words: no closing quotation',
        ),
    ],
)
def test_problems_say_where_what_and_what_next(changes: dict[str, Any], text: str) -> None:
    """One wrong value is one problem: the key, what is legal, and often a next step."""
    if "cluster.pass_env" in changes:
        assert problems_of(changes, environ={"RANK": "0"}) == [text]
    else:
        assert problems_of(changes) == [text]


def test_all_problems_are_told_at_once() -> None:
    """A user cures them in one go."""
    problems = problems_of({"cluster.backend": "x", "lost_s": -1, "task.args": {"a": {"b": 1}}})
    assert [problem.partition(":")[0] for problem in problems] == [
        "cluster.backend",
        "task.args.a",
        "lost_s",
    ]


def test_environment_values_are_texts() -> None:
    """Numbers keep their spelling, true is "true", text stays to the letter, null takes out."""
    text = "a b\n$HOME 'x' \"y\""
    env = {"S": text, "I": 8, "F": 0.1, "T": True, "N": None, "NAN": "nan", "E": ""}
    wanted = {"S": text, "I": "8", "F": "0.1", "T": "true", "N": None, "NAN": "nan", "E": ""}
    assert spec_of({"task.env": env}).task.env == wanted


def test_passed_environment_lies_below_the_clusters() -> None:
    """`pass_env` copies; what the YAML sets wins."""
    spec = spec_of(
        {"cluster.pass_env": ["A", "B"], "cluster.env": {"B": "yaml"}},
        {"A": "1", "B": "2", "C": "3"},
    )
    assert spec.env == {"A": "1", "B": "yaml"}


def test_names_that_are_not_set_are_told() -> None:
    """For `pass_env` and `secrets` alike, with what to type."""
    assert problems_of({"cluster.pass_env": ["A"], "cluster.secrets": "B"}) == [
        (
            "cluster.pass_env: A is not set in this shell's environment\n"
            "    export A=… first, or take it out of cluster.pass_env"
        ),
        (
            "cluster.secrets: B is not set in this shell's environment\n"
            "    export B=… first, or take it out of cluster.secrets"
        ),
    ]


def test_a_secret_is_kept_apart() -> None:
    """It is in no environment that gets recorded, and prints as ***."""
    spec = spec_of({"cluster.secrets": ["TOKEN"]}, {"TOKEN": "hunter2"})
    assert spec.secrets == {"TOKEN": Secret("hunter2")}
    assert spec.env == {}
    assert "hunter2" not in repr(spec)


def test_a_secret_in_the_open_is_refused() -> None:
    """Wherever its name stands a second time."""
    changes = {
        "cluster.secrets": ["TOKEN"],
        "cluster.pass_env": ["TOKEN"],
        "cluster.nodes": {"gpu1": {"env": {"TOKEN": "x"}}},
    }
    assert problems_of(changes, {"TOKEN": "hunter2"}) == [
        f"{place}: TOKEN is a secret (cluster.secrets) and would be recorded here"
        for place in ("cluster.pass_env", "cluster.nodes.gpu1.env")
    ]


@pytest.mark.parametrize(
    ("program", "kind", "target", "args"),
    [
        ({"script": "sub dir/train.py"}, "script", "sub dir/train.py", ()),
        ({"module": "package.train"}, "module", "package.train", ()),
        ({"command": "./run.sh"}, "command", "./run.sh", ()),
        ({"command": "bash -c 'echo $RANK'"}, "command", "bash", ("-c", "echo $RANK")),
        ({"command": ["bash", "-c", "echo $RANK"]}, "command", "bash", ("-c", "echo $RANK")),
    ],
)
def test_programs(program: dict[str, Any], kind: str, target: str, args: tuple[str, ...]) -> None:
    """A file, a module, or a command line whose first word is the program."""
    changes = {"task.script": None, **{f"task.{key}": value for key, value in program.items()}}
    assert spec_of(changes).task == Task("train", kind, target, args)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({"script": "a/fit.py"}, "fit"),
        ({"script": "digits/train.py"}, "digits"),
        ({"script": "digits/src/main.py"}, "digits"),
        ({"script": "/main.py"}, "main"),
        ({"module": "package.train"}, "package"),
        ({"module": "train"}, "train"),
        ({"module": "package.fit"}, "fit"),
        ({"command": "/bin/run.sh --fast"}, "run"),
        ({"command": ["./go"]}, "go"),
        ({}, "task"),
    ],
)
def test_a_program_without_yaml_has_a_name(task: dict[str, Any], name: str) -> None:
    """The run id needs one; where any program may have it, that of its folder tells more."""
    assert program_name(task) == name


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["/data/x"], "'/data/x' is absolute"),
        ("~/x", "'~/x' is absolute"),
        (["fine", "a/../../x"], "'a/../../x' leads out of the working folder"),
        (["a", ""], "a path is empty"),
        ("", "a path is empty"),
        (" ", "' ' is empty"),
        ([["a"]], "must be a list of texts, not [['a']]"),
    ],
)
def test_outputs_stay_in_the_working_folder(value: object, problem: str) -> None:
    """Each wrong one is told once, with what would be right."""
    (told,) = problems_of({"task.outputs": value})
    assert told.splitlines()[0] == f"task.outputs: {problem}"


def test_outputs_are_paths_and_patterns() -> None:
    """One alone is a list of one."""
    assert spec_of({"task.outputs": "results"}).task.outputs == ("results",)
    assert spec_of({"task.outputs": ["a/*.pt", "./b"]}).task.outputs == ("a/*.pt", "./b")
    assert spec_of({"task.outputs": None}).task.outputs == ()
    assert not spec_of({"pull_outputs": "never"}).pull_outputs


@pytest.mark.parametrize("task", ["resnet18", "Vision/ResNet_50", "ß", "", "x" * 90, "-a-"])
def test_run_ids_are_safe_names(task: str) -> None:
    """For a file, a label and a rendezvous, whatever the task is called."""
    assert re.fullmatch(r"\d{4}-\d{4}-[a-z0-9][a-z0-9-]{0,39}-[0-9a-z]{4}", new_run_id(task))


def test_the_project_is_where_the_user_stands_as_they_see_it(tmp_path: Path) -> None:
    """Through a symbolic link it has the link's name; a stale PWD counts for nothing."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)

    def project(pwd: str, value: str | None = None) -> str:
        changes = {"cluster.project": value}
        return build_spec(asked(changes, {"PWD": pwd}, str(real)), [])[0].project

    assert project(str(link)) == str(link)
    assert project(str(tmp_path)) == str(real)
    assert project("") == str(real)
    assert project(str(link), "sub") == str(link / "sub")
    assert project(str(link), "/shared/code") == "/shared/code"


@pytest.mark.parametrize(
    ("changes", "on"),
    [
        ({}, True),
        ({"cluster.project": "."}, False),
        ({"cluster.project": "~/code"}, False),
    ],
)
def test_code_is_pushed_unless_it_is_there(changes: dict[str, Any], on: bool) -> None:
    """A `project` says that it is not."""
    assert spec_of(changes).deploy.enabled is on


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 600.0),
        ({"disconnect_s": 5}, 5.0),
        ({"disconnect_s": "never"}, 0.0),
        ({"detach": True}, 600.0),  # until it is left
    ],
)
def test_how_long_a_run_goes_on_alone(changes: dict[str, Any], seconds: float) -> None:
    """0 is for ever: for runs that nobody is meant to wait for."""
    assert build_spec(asked(changes), [])[0].disconnect_s == seconds


def test_options_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder is absolute, ranks may be one or many, dry runs are three words."""
    monkeypatch.setenv("HOME", "/home/ada")
    changes = {"run_dir": "~/r", "console_ranks": [0, 3], "dry_run": "offline", "ui": "plain"}
    assert build_spec(asked(changes), [])[1] == {
        "run_dir": Path("/home/ada/r"),
        "console_ranks": frozenset({0, 3}),
        "dry_run": DryRun.OFFLINE,
        "plan_as_json": False,
        "ui": "plain",
        "sweep_parallel": 1,
        "sweep_one_job": False,
    }
    assert build_spec(asked({"console_ranks": 2, "dry_run": True}), [])[1] == {
        "run_dir": Path("/runs/run-1"),
        "console_ranks": frozenset({2}),
        "dry_run": DryRun.ON,
        "plan_as_json": False,
        "ui": "auto",
        "sweep_parallel": 1,
        "sweep_one_job": False,
    }


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        ("json", (DryRun.ON, True)),
        (["offline", "json"], (DryRun.OFFLINE, True)),
        (["json", True], (DryRun.ON, True)),
        (["offline"], (DryRun.OFFLINE, False)),
    ],
)
def test_a_dry_run_prints_json_for_programs(value: object, mode: tuple[DryRun, bool]) -> None:
    """Of all hosts, or offline as a list of both words."""
    options = build_spec(asked({"dry_run": value}), [])[1]
    assert (options["dry_run"], options["plan_as_json"]) == mode


WATCH = ("watch.stall_s", "watch.action", "watch.metrics", "watch.stacks")


def test_the_keys_are_these() -> None:
    """The schema is what users write: a new key means a line here, on purpose."""

    def keys(values: dict[str, Any], before: str = "") -> list[str]:
        found = []
        for key, value in values.items():
            found += keys(value, f"{before}{key}.") if value and isinstance(value, dict) else []
            found += [] if value and isinstance(value, dict) else [before + key]
        return found

    assert keys(dataclasses.asdict(RunnerConfig())) == [
        *("cluster.transport", "cluster.scheduler", "cluster.login_node"),
        *("cluster.slurm.partition", "cluster.slurm.account", "cluster.slurm.qos"),
        *("cluster.slurm.time", "cluster.slurm.constraint", "cluster.slurm.nodelist"),
        *("cluster.slurm.reservation", "cluster.slurm.licenses", "cluster.slurm.gres"),
        *("cluster.slurm.cpus_per_rank", "cluster.slurm.mem_per_rank", "cluster.slurm.signal"),
        *("cluster.slurm.signal_before", "cluster.slurm.requeue", "cluster.slurm.srun"),
        "cluster.slurm.extra",
        *("cluster.backend", "cluster.gpus_per_node"),
        *("cluster.nproc_per_node", "cluster.master", "cluster.master_port", "cluster.nodes"),
        *("cluster.only", "cluster.exclude"),
        *("cluster.ssh.user", "cluster.ssh.port", "cluster.ssh.key", "cluster.ssh.config"),
        *("cluster.ssh.jump", "cluster.ssh.known_hosts", "cluster.ssh.host_keys"),
        *("cluster.ssh.connect_timeout", "cluster.python", "cluster.host_python"),
        *("cluster.setup", "cluster.project", "cluster.workdir"),
        *("cluster.env", "cluster.pass_env", "cluster.secrets"),
        *("task.module", "task.script", "task.command", "task.args", "task.entry"),
        *("task.local_rank_arg", "task.args_style", "task.preload", "task.args_expand"),
        *("task.extra_args",),
        *("task.env", "task.outputs", "task.nodes", "task.nnodes"),
        *("rendezvous.backend", "rendezvous.endpoint", "rendezvous.serve"),
        *("container.engine", "container.program", "container.image", "container.build"),
        *("container.push_image", "container.prepare_timeout_s", "container.python"),
        *("container.mounts", "container.shm_size", "container.ipc", "container.user"),
        *("container.ulimits", "container.pull", "container.entrypoint", "container.extra"),
        *("torchrun.max_restarts", "torchrun.monitor_interval", "torchrun.rdzv_conf"),
        *("torchrun.role", "torchrun.start_method", "torchrun.signals_to_handle"),
        *("torchrun.numa_binding", "torchrun.shutdown_timeout"),
        *("relaunch.max", "relaunch.backoff_s"),
        *("dry_run", "run_id", "run_dir", "rerun", "ui", "deploy.max_mb", "deploy.keep"),
        "deploy.fan_out",
        *("pull_outputs", "skip_checks", "console_ranks", *WATCH),
        *(
            "sample_s",
            "progress.pattern",
            "sweep.parallel",
            "sweep.one_job",
            "grace_s",
            "lost_s",
            "disconnect_s",
            "detach",
        ),
    ]


@pytest.mark.parametrize("section", ["cluster.ssh", "torchrun", "rendezvous", "relaunch", "deploy"])
def test_a_section_with_an_unknown_key_is_read(section: str) -> None:
    """The key is reported with the others; the values that are known are read."""
    assert spec_of({f"{section}.unknown": 1}) == spec_of({})


def test_a_pattern_of_progress_lines_reaches_the_spec() -> None:
    """One that might take long on some line is refused, with what is possible."""
    assert spec_of({"progress.pattern": r"epoch (\d+)/(\d+)"}).progress_pattern
    (problem,) = problems_of({"progress.pattern": r"epoch.*(\d+)"})
    assert problem.startswith(r"progress.pattern: epoch.*(\d+) has .* before \d, which may match")
    assert r"such as epoch (\d+)/(\d+)" in problem
    assert "needs one group" in problems_of({"progress.pattern": "epoch"})[0]


@pytest.mark.parametrize(
    ("value", "seconds"), [(5, 5.0), (1, 1.0), (3600, 3600.0), ("off", 0.0), (False, 0.0)]
)
def test_the_interval_of_samples(value: object, seconds: float) -> None:
    """Whole or not, from a second to an hour; off is what YAML reads as false."""
    assert spec_of({"sample_s": value}).sample_s == seconds


@pytest.mark.parametrize("value", [0.5, 3601, -1, "often", [5]])
def test_an_interval_that_is_no_use_is_refused(value: object) -> None:
    """With the key, and what is legal."""
    (problem,) = problems_of({"sample_s": value})
    assert problem.startswith("sample_s: must be ")


IMAGE_FILE = {"container.image": "/images/train.sif"}


@pytest.mark.parametrize("engine", ["apptainer", "enroot"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shm_size", "16g"),
        ("ipc", "host"),
        ("user", "image"),
        ("ulimits", {"nofile": 65536}),
        ("pull", "always"),
        ("entrypoint", "image"),
        ("mounts", ["/data,old:/data"]),
        ("push_image", True),
    ],
)
def test_a_key_that_an_engine_would_ignore_is_refused(engine: str, key: str, value: object) -> None:
    """By name, and docker takes it."""
    changes = {f"container.{key}": value, **IMAGE_FILE}
    (problem,) = problems_of({"container.engine": engine, **changes})
    assert problem.startswith(f"container.{key}: ")
    assert engine in problem
    assert spec_of({"container.engine": "docker", **changes}).container.engine == "docker"


def test_an_engine_that_pulls_nothing_may_be_told_so() -> None:
    """All other keys are left at their defaults."""
    never = {"container.engine": "apptainer", "container.pull": "never", **IMAGE_FILE}
    assert spec_of(never).container.pull == "never"
