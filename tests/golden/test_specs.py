"""Values of keys and the `Spec` that they make, on one page: what differs from the defaults."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from runner.config.kinds import Problems
from runner.config.resolve import Context, resolve
from runner.core.codec import decode, encode
from runner.core.errors import ConfigError
from runner.core.spec import Node, Spec, written_defaults
from tests.golden.conftest import Check

DEFAULTS: dict[str, Any] = {
    "run_id": "run-1",
    "run_dir": "runs/run-1",
    "cluster.nodes": {"gpu1": {}},
    "cluster.host_python": "python3",
    "task.script": "train.py",
}


def spec_of(
    changes: Mapping[str, Any], environ: dict[str, str] | None = None, cwd: str = "/"
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


def problems_of(changes: Mapping[str, Any], environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(changes, environ)
    return [str(problem) for problem in caught.value.problems]


Case = dict[str, Any]
TEXT = "a b\n$ 'x' \"y\" a~b"
LONE: Case = {"task.script": None}
LOCAL: Case = {"cluster.transport": "local"}
RANGE: Case = {"cluster.nodes": {"gpu1": {}, "gpu2": {}, "gpu[03-16]": {}}}
SLURM: Case = {"cluster.scheduler": "slurm", "rendezvous.backend": "c10d"}
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3],m5",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2),4,16",
}
GPUS_AND_ENV = {"user": "ada", "gpus": 8, "env": {"A": 1, "B": 1}}
ARGS = {"on": True, "off": False, "m": {"off": False}, "none": None}
LOCAL_RANK: Case = {"task.local_rank_arg": "--local_rank", "task.args": {"lr": 1}}

VALUES: list[Case] = [
    {"task.env": {"S": TEXT, "I": 8, "F": 0.1, "T": True, "N": None, "NAN": "nan", "E": ""}},
    {"cluster.env": {"B": "yaml"}, "cluster.pass_env": ["PASSED", "B"]},
    {"disconnect_s": "never"},
    {"sample_s": "off"},
    {"sample_s": False},
    {"sample_s": 3600},
    {"cluster.master_port": "auto"},
    {"cluster.master_port": "29500"},
    {"cluster.master_port": "1 - 65535"},
    {"console_ranks": ["3", "0"]},
    {"console_ranks": "2"},
    {"console_ranks": "all"},
    {"dry_run": True},
    {"dry_run": ["offline", "json"]},
    {"cluster.project": "~/code"},
    {"debug.rank": 1},
]
TASKS: list[Case] = [
    {"task.script": "sub dir/train.py"},
    {**LONE, "task.module": "package.train"},
    {**LONE, "task.command": "bash -c 'echo $RANK'"},
    {**LONE, "task.command": ["bash", "-c", "echo $RANK"]},
    {**LONE, "task.command": "t 'a|b' \"it's\" a\\;b ^a$ --x=~/y (1,2) ${local_rank} '$A' \\\n--l"},
    {"task.outputs": "results"},
    {"task.outputs": ["a/*.pt", "./b"]},
    {"task.args": {"n": ["1", "2"]}, "task.args_before": "fit", "task.args_after": ["/d"]},
    {"task.args": {"lr": 0.1, "-x": 1, "n": -1, "text": "-a b", "true": "true", "empty": []}},
    {"task.args": {"sizes": [1, 2.5, "a b"], "x": ["-1", "-2.5"], "b": [True, False]}},
    {"task.args": {"c": [["a"], ["b", "c"]], "m": {"lr": "1", "o": {"b": True}}}},
    {"task.args": ARGS, "task.args_false": "omit"},
    {"task.args": ARGS, "task.args_false": "no"},
    {"task.args": ARGS, "task.args_false": "value"},
    {"task.args_style": "equals", "task.args": {"lr": 1e-05, "x": -1, "-n": "a b", "": ""}},
    {"task.args_style": "equals", "task.args": {"compile": False, "amp": True, "null": None}},
    {"task.args_style": "hydra", "task.args": {"lr": 0.1, "name": "a/b.c", "n": None, "t": True}},
    {"task.args_style": "hydra", "task.args": {"m": {"opt": {"lr": 1}}, "+new": {"k": 1}}},
    {"task.args_style": "hydra", "task.args": {"x": "a b", "y": 'say "hi"\\', "z": [1, "a,b"]}},
    {"task.args_style": "raw", "task.args": ["--x", 1, "a b"]},
    {"task.args_style": "raw", "task.args": "--x 1 'a b'"},
    {
        **{"task.args_style": "raw", "task.args": "--rank $RANK\n--x 1\n"},
        **{"task.entry": "plain", "task.args_expand": True},
    },
    LOCAL_RANK,
    {**LOCAL_RANK, **LONE, "task.command": "python old.py"},
]
NODES: list[Case] = [
    {"cluster.nodes": {"a": None, "b": {}}, **LOCAL, "cluster.gpus_per_node": 2},
    {
        "cluster.nodes": {"a": {"gpus": "auto", "nproc_per_node": "auto"}},
        "cluster.nproc_per_node": 3,
    },
    {"cluster.nodes": {"b": {}, "c[2-3]": {}, "a": {}}},
    {"cluster.nodes": {"a": {}, "b": {}, "c": {}}, "cluster.master": "b"},
    {"cluster.nodes": {"gpu[1-3]": GPUS_AND_ENV, "gpu2": {"gpus": [1], "env": {"B": 2}}}},
    {**RANGE, "cluster.exclude": ["gpu1", "gpu[03-15]"]},
    {**RANGE, "cluster.only": "gpu[03-05]", "cluster.exclude": "gpu04"},
    {**RANGE, "task.nodes": ["gpu16", "gpu2"]},
    {**RANGE, "task.nnodes": 2, "cluster.master": "gpu05"},
    {**RANGE, "task.nnodes": 2, "cluster.exclude": ["gpu1"]},
    {"cluster.nodes": {"a": {"host": "x", "port": 1}, "b": {"host": "x", "port": 2}}},
    {"cluster.nodes": {"a": {"host": "x"}, "b": {"host": "x"}}, **LOCAL},
]
OUTSIDE_OF_A_JOB: list[Case] = [
    {**SLURM, "cluster.nodes": 4, "cluster.gpus_per_node": 8, "cluster.nproc_per_node": 4},
    {"cluster.slurm.partition": "gpu"},
]
INSIDE_OF_A_JOB: list[Case] = [
    {**SLURM, "cluster.nodes": 3, "cluster.exclude": ["gone"]},
    *[
        {**SLURM, "cluster.nodes": nodes, "task.nnodes": wanted, "relaunch.max": relaunches}
        for nodes, wanted, relaunches in (
            *((3, None, 2), ("2:4", None, 0), (3, 2, 0)),
            *((3, 2, 1), (3, 4, 1), (4, "2:3", 1)),
        )
    ],
]
BARE: dict[str, Any] = encode(Node(""))


def flat(data: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of a spec; of its nodes the names, with what is not as in any other."""
    if key in ("nodes", "spares") and isinstance(data, list):
        yield key, " ".join(map(node_text, data))
    elif isinstance(data, dict) and data:
        for name, value in data.items():
            yield from flat(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, data


def node_text(node: dict[str, Any]) -> str:
    usual = {**BARE, "name": node["name"], "host": node["name"]}
    odd = {name: value for name, value in node.items() if usual[name] != value}
    return node["name"] + (json.dumps(odd) if odd else "")


def test_each_value_makes_the_spec(check_screen: Check) -> None:
    """Of the machines, of the task and of the run; hosts take a spec as it is.

    What a value makes of itself alone is left out, if that is the same.
    """
    page = []
    shell = {"PASSED": "1", "B": "2", "C": "3"}
    for title, cases, environ in (
        ("values", VALUES, shell),
        ("tasks", TASKS, {}),
        ("nodes", NODES, {}),
        ("outside of a job", OUTSIDE_OF_A_JOB, {}),
        ("inside of a job", INSIDE_OF_A_JOB, JOB),
    ):
        page.append(f"== {title}")
        usual = dict(flat(encode(spec_of({}, environ))))
        for changes in cases:
            spec = spec_of(changes, environ)
            assert decode(Spec, encode(spec)) == spec
            page.append(json.dumps(changes, ensure_ascii=False))
            known = {
                **usual,
                **dict(each for item in changes.items() for each in flat(*item[::-1])),
            }
            for key, value in flat(encode(spec)):
                if key not in known or known[key] != value:
                    text = value if key in ("nodes", "spares") else json.dumps(value)
                    page.append(f"  {key}: {text}")
    check_screen("specs.txt", "\n".join(page) + "\n")
