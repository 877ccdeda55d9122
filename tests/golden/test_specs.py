"""Values of keys and the `Spec` that they make, on one page: what differs from the defaults."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from runner.config.kinds import Problems
from runner.config.resolve import Context, resolve
from runner.core.errors import ConfigError
from runner.core.spec import Node, Spec, written_defaults
from runner.core.wire.codec import decode, encode
from tests.golden.conftest import SCREENS, Check

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


ENVIRONS = {
    "values": {"PASSED": "1", "B": "2", "C": "3"},
    "inside of a job": {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3],m5",
    },
}
"""What is exported where the values of these parts of the page are composed."""

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
    return f"{node['name']}{json.dumps(odd) if odd else ''}"


def test_each_value_makes_the_spec(check_screen: Check) -> None:
    """Of the machines, of the task and of the run; hosts take a spec as it is.

    What a value makes of itself alone is left out, if that is the same. To add a case write its
    keys on the page.
    """
    page = []
    environ: dict[str, str] = {}
    for line in (SCREENS / "specs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            environ = ENVIRONS.get(line.removeprefix("== "), {})
            page.append(line)
        if not line.startswith("{"):
            continue
        changes: dict[str, Any] = json.loads(line)
        spec = spec_of(changes, environ)
        assert decode(Spec, encode(spec)) == spec
        page.append(line)
        asked = [each for key, value in changes.items() for each in flat(value, key)]
        known = {**dict(flat(encode(spec_of({}, environ)))), **dict(asked)}
        for key, value in flat(encode(spec)):
            if key not in known or known[key] != value:
                text = value if key in ("nodes", "spares") else json.dumps(value)
                page.append(f"  {key}: {text}")
    check_screen("specs.txt", "\n".join(page) + "\n")
