"""Composed values become a `Spec`, or all problems are reported at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.config.kinds import Problems, legal_values
from runner.config.resolve import Context, new_run_id, program_name, resolve
from runner.core.errors import ConfigError
from runner.core.model.order import DebugRank
from runner.core.spec import PortRange, Secret, Spec, keys_of, section_of, written_defaults

DEFAULTS: dict[str, Any] = {
    "run_id": "run-1",
    "run_dir": "runs/run-1",
    "cluster.nodes": {"gpu1": {}},
    "cluster.host_python": "python3",
    "task.script": "train.py",
}


def spec_of(
    changes: dict[str, Any],
    environ: dict[str, str] | None = None,
    cwd: str = "/",
) -> Spec:
    """Return the shipped defaults, one node, one script, and `changes` by full key."""
    values = written_defaults(Spec)
    for key, value in {**DEFAULTS, **changes}.items():
        *path, last = key.split(".")
        place = values
        for part in path:
            place = place[part]
        place[last] = copy.deepcopy(value)
    context = Context("lab", "train", cwd, environ or {})
    return resolve(values, context, Problems())


def problems_of(changes: dict[str, Any], environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(changes, environ)
    return [str(problem) for problem in caught.value.problems]


def test_environment_values_are_texts() -> None:
    """Numbers keep their spelling, true is "true", text stays to the letter, null takes out."""
    text = "a b\n$ 'x' \"y\" a~b"
    env = {"S": text, "I": 8, "F": 0.1, "T": True, "N": None, "NAN": "nan", "E": ""}
    wanted = {"S": text, "I": "8", "F": "0.1", "T": "true", "N": None, "NAN": "nan", "E": ""}
    assert spec_of({"task.env": env}).task.env == wanted


def test_what_only_a_shell_would_replace_is_refused() -> None:
    """With the line that does it on the hosts."""
    env = {"PATH": "/opt/bin:$PATH", "DATA": "~/data", "X": "a~/b", "PORT": "$MASTER_PORT"}
    said = problems_of({"task.env": env})
    assert [each.partition(" reaches")[0] for each in said] == [
        "task.env.PATH: $PATH",
        "task.env.DATA: ~",
        "task.env.PORT: $MASTER_PORT",
    ]
    assert "cluster.setup: ['export PATH=\"/opt/bin:$PATH\"']" in said[0]
    assert "command: [bash, -c, 'export PORT=\"$MASTER_PORT\"; exec PROGRAM']" in said[2]


def test_passed_environment_lies_below_the_clusters() -> None:
    """`pass_env` copies; what the YAML sets wins."""
    spec = spec_of(
        {"cluster.pass_env": ["A", "B"], "cluster.env": {"B": "yaml"}},
        {"A": "1", "B": "2", "C": "3"},
    )
    assert spec.cluster.env == {"A": "1", "B": "yaml"}


def test_a_secret_is_kept_apart() -> None:
    """It is in no environment that gets recorded, and prints as ***."""
    spec = spec_of({"cluster.secrets": ["TOKEN"]}, {"TOKEN": "hunter2"})
    assert spec.secrets == {"TOKEN": Secret("hunter2")}
    assert spec.cluster.env == {}
    assert "hunter2" not in repr(spec)


@pytest.mark.parametrize(
    ("program", "kind", "target", "args"),
    [
        ({"script": "sub dir/train.py"}, "script", "sub dir/train.py", ()),
        ({"module": "package.train"}, "module", "package.train", ()),
        ({"command": "bash -c 'echo $RANK'"}, "command", "bash", ("-c", "echo $RANK")),
        ({"command": ["bash", "-c", "echo $RANK"]}, "command", "bash", ("-c", "echo $RANK")),
    ],
)
def test_programs(program: dict[str, Any], kind: str, target: str, args: tuple[str, ...]) -> None:
    """A file, a module, or a command line whose first word is the program."""
    changes = {"task.script": None, **{f"task.{key}": value for key, value in program.items()}}
    task = spec_of(changes).task
    assert (task.name, task.kind, task.target, task.words) == ("train", kind, target, args)


def test_a_program_without_yaml_has_a_name() -> None:
    """The run id needs one; where any program may have it, that of its folder tells more."""
    names: list[tuple[dict[str, Any], str]] = [
        ({"script": "a/fit.py"}, "fit"),
        ({"script": "digits/train.py"}, "digits"),
        ({"script": "digits/src/main.py"}, "digits"),
        ({"script": "/main.py"}, "main"),
        ({"module": "package.train"}, "package"),
        ({"module": "train"}, "train"),
        ({"command": "/bin/run.sh --fast"}, "run"),
        ({"command": ["./go"]}, "go"),
        ({}, "task"),
    ]
    assert [program_name(task) for task, _ in names] == [name for _, name in names]


def test_run_ids_are_safe_names() -> None:
    """For a file, a label and a rendezvous, whatever the task is called."""
    for task in ("resnet18", "Vision/ResNet_50", "ß", "", "x" * 90, "-a-"):
        made = new_run_id(task)
        assert re.fullmatch(r"\d{4}-\d{4}-[a-z0-9][a-z0-9-]{0,39}-[0-9a-z]{4}", made), task


def test_the_project_is_where_the_user_stands_as_they_see_it(tmp_path: Path) -> None:
    """Through a symbolic link it has the link's name; a stale PWD counts for nothing."""
    real = tmp_path / "real"
    link = tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)

    def project(pwd: str, value: str | None = None) -> str:
        changes = {"cluster.project": value}
        return spec_of(changes, {"PWD": pwd}, str(real)).cluster.project

    assert project(str(link)) == str(link)
    assert project(str(tmp_path)) == str(real)
    assert project("") == str(real)
    assert project(str(link), "sub") == str(link / "sub")
    assert project(str(link), "/shared/code") == "/shared/code"


def numeric_keys(section: type, before: str = "") -> Iterator[str]:
    """Yield the full keys of numbers."""
    for name, option in keys_of(section).items():
        nested = section_of(option)
        if nested:
            yield from numeric_keys(nested, f"{before}{name}.")
        elif re.match("seconds|a whole|a number|a port|1 to", legal_values(option)):
            yield f"{before}{name}"


NUMERIC_KEYS = [
    key
    for key in numeric_keys(Spec)
    if not key.startswith("cluster.slurm.") and not re.search("memory|shm_size|mem_per", key)
]


def test_a_bool_is_no_number() -> None:
    """YAML reads `on` as true, which Python takes for 1."""
    on: dict[str, Any] = dict.fromkeys(NUMERIC_KEYS, True)
    on["cluster.nodes"] = {"gpu1": {"gpus": True, "nproc_per_node": True, "port": True}}
    named = {problem.partition(":")[0] for problem in problems_of(on)}
    nodes = {f"cluster.nodes.gpu1.{key}" for key in ("gpus", "nproc_per_node", "port")}
    assert {*NUMERIC_KEYS, *nodes} <= named
    assert {"grace_s", "sample_s", "watch.stall_s", "disconnect_s"} <= named


def test_words_and_bools_of_yaml_stand_for_values() -> None:
    """`never` is for ever, off is what YAML reads as false, one port is a range of one."""
    assert spec_of({"disconnect_s": "never"}).disconnect_s == 0.0
    assert spec_of({"sample_s": "off"}).sample_s == 0.0
    assert spec_of({"sample_s": False}).sample_s == 0.0
    assert spec_of({"sample_s": 3600}).sample_s == 3600.0
    assert spec_of({"cluster.master_port": "auto"}).cluster.master_port == PortRange()
    assert spec_of({"cluster.master_port": "29500"}).cluster.master_port == PortRange(29500, 29500)
    assert spec_of({"cluster.master_port": "1 - 65535"}).cluster.master_port == PortRange(1, 65535)
    assert spec_of({"task.outputs": "results"}).task.outputs == ("results",)
    assert spec_of({"task.outputs": ["a/*.pt", "./b"]}).task.outputs == ("a/*.pt", "./b")
    assert spec_of({"debug.rank": 1}).debug_rank == DebugRank(1, 5678)
    assert not spec_of({"cluster.project": "~/code"}).deploy.enabled


def test_options_of_a_run() -> None:
    """Ranks may be one or many; a dry run prints JSON for programs, or is offline, or both."""
    assert spec_of({"console_ranks": ["3", "0"]}).console_ranks == (0, 3)
    assert spec_of({"console_ranks": "2"}).console_ranks == (2,)
    assert spec_of({"console_ranks": "all"}).console_ranks is None
    for value, words in (
        (False, ()),
        (True, ("true",)),
        ("json", ("json",)),
        (["offline", "json"], ("json", "offline")),
    ):
        assert spec_of({"dry_run": value}).dry_run == words


def test_a_section_with_an_unknown_key_is_read() -> None:
    """The key is reported with the others; the values that are known are read."""
    for section in ("cluster.ssh", "torchrun", "rendezvous", "relaunch", "deploy"):
        assert spec_of({f"{section}.unknown": 1}) == spec_of({}), section


def test_the_home_of_another_user_is_refused() -> None:
    """Here nobody may have that name, and on a host it would be a folder called `~ada`."""
    here = ("run_dir", "cluster.ssh.key", "cluster.ssh.config", "cluster.ssh.known_hosts")
    there = ("cluster.workdir", "cluster.project", "cluster.python", "cluster.host_python")
    problems = problems_of(dict.fromkeys((*here, *there), "~ada/x"))
    assert {problem.partition(":")[0] for problem in problems} == {*here, *there}
