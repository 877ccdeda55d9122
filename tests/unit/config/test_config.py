"""Composed values become a `Spec`, or all problems are reported at once."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.config.kinds import Problems, legal_values
from runner.config.resolve import Context, new_run_id, program_name, resolve
from runner.core.errors import ConfigError
from runner.core.model.plan import DebugRank
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


def test_what_the_shell_gives() -> None:
    """`pass_env` copies, the YAML wins; a secret is in no environment and prints as ***."""
    given = {"cluster.pass_env": ["A", "B"], "cluster.env": {"B": "yaml"}}
    environ = {"A": "1", "B": "2", "C": "3", "TOKEN": "hunter2"}
    spec = spec_of({**given, "cluster.secrets": ["TOKEN"]}, environ)
    assert spec.cluster.env == {"A": "1", "B": "yaml"}
    assert spec.secrets == {"TOKEN": Secret("hunter2")}
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


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("disconnect_s", "never", 0.0),
        ("sample_s", "off", 0.0),
        ("sample_s", False, 0.0),
        ("sample_s", 3600, 3600.0),
        ("cluster.master_port", "auto", PortRange()),
        ("cluster.master_port", "29500", PortRange(29500, 29500)),
        ("cluster.master_port", "1 - 65535", PortRange(1, 65535)),
        ("task.outputs", "results", ("results",)),
        ("task.outputs", ["a/*.pt", "./b"], ("a/*.pt", "./b")),
        ("console_ranks", ["3", "0"], (0, 3)),
        ("console_ranks", "2", (2,)),
        ("console_ranks", "all", None),
        ("dry_run", False, ()),
        ("dry_run", True, ("true",)),
        ("dry_run", ["offline", "json"], ("json", "offline")),
    ],
)
def test_what_is_written_stands_for_a_value(key: str, written: object, value: object) -> None:
    """`never` is for ever, off is what YAML reads as false, one of a list may stand alone."""
    assert operator.attrgetter(key)(spec_of({key: written})) == value


def test_keys_that_decide_others() -> None:
    assert spec_of({"debug.rank": 1}).debug_rank == DebugRank(1, 5678)
    assert not spec_of({"cluster.project": "~/code"}).deploy.enabled


def test_the_home_of_another_user_is_refused() -> None:
    """Here nobody may have that name, and on a host it would be a folder called `~ada`."""
    here = ("run_dir", "cluster.ssh.key", "cluster.ssh.config", "cluster.ssh.known_hosts")
    there = ("cluster.workdir", "cluster.project", "cluster.python", "cluster.host_python")
    problems = problems_of(dict.fromkeys((*here, *there), "~ada/x"))
    assert {problem.partition(":")[0] for problem in problems} == {*here, *there}
