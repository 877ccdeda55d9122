"""Composed values become a `Spec`, in ways that no page of them shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.config.kinds import legal_values
from runner.config.resolve import new_run_id, program_name
from runner.core.spec import Spec, keys_of, section_of
from tests.golden.test_specs import problems_of, spec_of


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
