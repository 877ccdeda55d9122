"""The configuration page, made from the schema: `python -m docs.reference` prints it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from runner.config.kinds import legal_values
from runner.config.source import one_line
from runner.core.spec import Node, Spec, keys_of, section_of, written_default

SMALL = 4
"""Sections with so few keys have no table of their own."""

INTRODUCTION = """\
# Configuration

<!-- Made by `python -m docs.reference > docs/configuration.md`. -->

YAML says what to run and where; the command line changes any of it for one run. `runner init`
writes the first files. `runner config` prints what was composed, and `runner explain KEY` which
file or word set a value.

## Files

A run takes a **cluster** (`conf/cluster/NAME.yaml`), which says which machines, and a **task**
(`conf/task/NAME.yaml`), which says what they do. Each file begins with `defaults: [base]`, which
stands for every default on this page.

```yaml
# conf/cluster/mine.yaml
defaults: [base]
nodes:
  gpu1: {host: 192.168.1.109}
  gpu2: {host: 192.168.1.110, user: bob, port: 2222}
python: ~/venv/bin/python
```

```yaml
# conf/task/train.yaml
defaults: [base]
script: train.py
args:
  lr: 0.1        # --lr 0.1
  amp: true      # --amp
  sizes: [1, 2]  # --sizes 1 2
```

```sh
runner cluster=mine task=train
```

A file that begins with `defaults: [mine]` builds on `mine` and says only what differs.
`conf/runner.yaml` chooses the cluster and the task for runs that name none, and may set any other
key for all runs:

```yaml
# conf/runner.yaml
defaults:
  - cluster: mine
  - task: train
lost_s: 60
```

Files are looked for in every `--config-dir DIR`, then in the nearest `conf/` upwards from the
folder you stand in that has a `cluster/`, a `task/` or a `runner.yaml`, then among the shipped
ones. The first one wins.

Without any YAML of yours, `runner` trains a small model on this machine, to try it out.

## The command line

`KEY=VALUE` sets a key. `GROUP=NAME` chooses a file, as does `GROUP=PATH.yaml`.

```sh
runner cluster=mine task=train task.args.lr=0.01 cluster.nodes.gpu2.gpus=4
runner cluster=mine task.script=train.py task.args.epochs=3
```

A program given without `task=`, as in the second line, keeps nothing of the default task.
`+KEY=VALUE` adds a key that is not there, and `~KEY` takes one out. New keys of `task.args` and
`env` need no `+`; a new node needs one:

```sh
runner cluster=mine task=train +cluster.nodes.gpu3.host=192.168.1.111 '~task.args.amp'
```

A value is the text that was written: `3.10`, `0123`, `16:9` and `off` reach the program so. Only
`true`, `false` and `null` have a meaning. Lists are `[a,b]`, mappings `{a:1}`. Text with commas,
brackets or quotes needs quotes of its own inside those of the shell:

```sh
runner cluster=mine task=train 'task.args.note="a, b and c"' 'task.args.sizes=[3,4]'
runner cluster=mine 'task.command=[bash,-c,"echo $RANK"]'
```

Words after `--` are [arguments of the program](programs.md#arguments). With `--multirun`, values
joined by commas make a run of each combination, one after the other:

```sh
runner cluster=mine task=train -- --lr 0.01 --amp
runner --multirun cluster=mine task=train task.args.lr=0.1,0.01
```

All runs of a sweep have the code of the first. Each has a record of its own, and
`runs/SWEEP_ID/sweep.json` says how all ended. A run that fails does not end the sweep, Ctrl-C does.
Sweepers, launchers and run folders of Hydra are refused.

## Ranges of nodes

`gpu[01-16]` names sixteen machines, `rack[1-2]n[1-8]` sixteen others. Ranges may stand below
`cluster.nodes`, and in `cluster.only` and `cluster.exclude`. The entry of one node adds to that of
its range and wins. Within the brackets or braces of YAML a range needs quotes, and
so does `${...}`: `[gpu1, "gpu[03-08]"]`.

```yaml
# conf/cluster/big.yaml
defaults: [base]
gpus_per_node: 8
nodes:
  gpu[01-16]: {user: alice}
  gpu05: {gpus: [0, 2, 4, 6], env: {NCCL_IB_DISABLE: "1"}}
exclude: [gpu03]
```

```sh
runner cluster=big task=train 'cluster.exclude=[gpu03,gpu[10-12]]'
runner cluster=big task=train 'cluster.only=gpu[01-02]' cluster.nodes.gpu02.gpus=4
```

## Values made of others

`${a.b}` is the value of another key, `${.b}` of a neighbour. `${oc.env:NAME,DEFAULT}` is a variable
of your environment, `${this_python:}` the interpreter that runs runner. So
`args: {data: "${oc.env:DATA,/data}", output: "results/${run_id}"}` is possible.

For a password or a token, `cluster.secrets: [NAME]` takes the variable NAME of your environment.
Only the ranks see it.
"""


def sections() -> dict[str, type]:
    """Return the class of each section by the key it stands below."""
    found: dict[str, type] = {"": Spec}
    pending = [""]
    for where in pending:
        for name, option in keys_of(found[where]).items():
            nested = section_of(option)
            if nested is not None:
                key = f"{where}.{name}".lstrip(".")
                found[key] = nested
                pending.append(key)
    found["cluster.nodes.NODE"] = Node
    order = ["", *keys_of(Spec)]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0].partition(".")[0])))


def render() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, "## Every key\n"]
    for name, section in sections().items():
        if _is_small(section):
            continue
        parts.append(f"### {f'`{name}`' if name else 'Top level'}\n")
        parts.append(f"{_summary(section)}\n")
        parts.append("\n".join(_table(section)) + "\n")
    return "\n".join(parts)


def _summary(section: type) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(section) or "").partition("\n\n")[0].split())


def _is_small(section: type) -> bool:
    return len(keys_of(section)) <= SMALL


def _table(section: type) -> Iterator[str]:
    yield "| key | default | legal | meaning |"
    yield "|---|---|---|---|"
    yield from _rows(section, "")


def _rows(section: type, prefix: str) -> Iterator[str]:
    for name, option in keys_of(section).items():
        nested = section_of(option)
        if nested is not None and _is_small(nested):
            yield from _rows(nested, f"{prefix}{name}.")
            continue
        cells = (
            f"`{prefix}{name}`",
            _default(option),
            legal_values(option),
            option.metadata["help"],
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(option: dataclasses.Field[Any]) -> str:
    """Return a default as YAML has it, "" where the key has a table of its own."""
    if section_of(option):
        return ""
    default = written_default(option)
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    return f"`{default:g}`" if is_number else f"`{one_line(default)}`"


if __name__ == "__main__":
    print(render(), end="")
