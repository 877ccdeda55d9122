"""The configuration page, made from the schema: `python -m docs.reference` prints it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from runner.config.kinds import legal_values
from runner.config.source import one_line
from runner.core.spec import Node, Spec, keys_of, section_of, written_default

INTRODUCTION = """\
# Configuration

<!-- Made by `python -m docs.reference > docs/configuration.md`; edit runner/config. -->

YAML says what to run and where; the command line changes any of it for one run. The first files of
a project are written by `runner init`. `runner config` prints all that was
composed, `runner explain KEY` which file or word set a value and what it overrides, and
`dry_run=offline` shows what would be made of it, without asking any host.

## Files

A run takes one file of each group: a **cluster** (`conf/cluster/NAME.yaml`, or `.yml`) says which
machines, a **task** (`conf/task/NAME.yaml`) what they do. Each begins with `defaults: [base]`,
which stands for every default on this page.

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

A file may build on another one of its group and say only what differs. What is listed later wins;
the file itself counts as the last unless `_self_` is in the list.

```yaml
# conf/cluster/mine-debug.yaml
defaults: [mine]
only: [gpu1]
env: {NCCL_DEBUG: INFO}
```

`conf/runner.yaml` chooses the cluster and the task for runs that name none, and may set any other
key for all runs. It is merged over the shipped one: what it leaves out keeps its default.

```yaml
# conf/runner.yaml
defaults:
  - cluster: mine
  - task: train
lost_s: 60
```

**Where files are looked for:** in every `--config-dir DIR`, then in your own `conf/`, which is the
nearest one upwards from the folder you stand in that is meant for the runner, then among the
shipped ones. The first folder that has a file of the name wins, and the run says what it hides. A
`conf/` is meant for the runner if it has a `runner.yaml`, or a file in `cluster/` or `task/` that
has no keys but these or begins with `defaults: [base]`: the `conf/task/` of another program does
not count.

Without any YAML of yours, `runner` trains a small model on this machine, to try it out.
Otherwise a launch needs a task, from the command line or from `conf/runner.yaml`.

## The command line

`KEY=VALUE` sets a key, `GROUP=NAME` chooses a file, as does `GROUP=PATH.yaml`. They hold in the
order given and over every file.

```sh
runner cluster=mine task=train task.args.lr=0.01 cluster.nodes.gpu2.gpus=4
runner cluster=mine task.script=train.py task.args.epochs=3
```

A program given without `task=`, as in the second line, stands alone: nothing of the task that
would have been the default is kept. `+KEY=VALUE` adds a key that is not there, `++KEY=VALUE` adds
or changes one, `~KEY` takes one out. `cluster.nodes`, `task.args` and every `env` take new keys
without a `+`; only a new node needs one:

```sh
runner cluster=mine task=train +cluster.nodes.gpu3.host=192.168.1.111 '~task.args.amp'
```

A value is the text that was written, in files and on the command line: `3.10`, `0123`, `16:9` and
`off` reach the program so. Only `true`, `false` and `null` have a meaning, lists are `[a,b]`,
mappings `{a:1}`. Text with commas, brackets or quotes needs quotes of its own inside those of the
shell; a path such as `~/data` needs none:

```sh
runner cluster=mine task=train 'task.args.note="a, b and c"' 'task.args.sizes=[3,4]'
runner cluster=mine 'task.command=[bash,-c,"echo $RANK"]'
```

Words after `--` are arguments of the program, and replace the same flags of `task.args`
([programs.md](programs.md#arguments)):

```sh
runner cluster=mine task=train -- --lr 0.01 --amp
```

With `--multirun`, values joined by commas make a run of each combination, one after the other:

```sh
runner --multirun cluster=mine task=train task.args.lr=0.1,0.01
```

All runs of a sweep have the code of the first, also after an edit, where code is pushed. Each has
a record of its own, in which `sweep.json` names the sweep, its number and what it differs in;
`runs/SWEEP_ID/sweep.json` has all runs and how they ended, which is also the table at the end. A
run that fails does not end the sweep, Ctrl-C does. `detach=true` is refused: nobody would wait for
one run to start the next. Plug-ins of Hydra for sweepers and launchers, `hydra.run`, `hydra.sweep`
and `hydra.job` have no effect on a launch and are refused, as is `${hydra:runtime.output_dir}`:
`run_dir` is where records go, `task.outputs` what comes home.

`rerun=RUN_ID`, such as `rerun=latest`, takes what is on record of a past run in place of all files:
its configuration, and the release it ran. Words change it (`rerun=latest task.args.lr=0.02`), and a
`cluster=` or `task=` replaces that whole section.

## Ranges of nodes

`gpu[01-16]` names sixteen machines, `rack[1-2]n[1-8]` sixteen others. Ranges may stand below
`cluster.nodes`, and in `cluster.only`, `cluster.exclude` and `task.nodes`. The entry of one node
adds to that of its range and wins, wherever it stands; the node keeps its place. `explain` shows
each entry as it stands. A node's own `python` and `env` win over the cluster's, its `setup`
follows. Within the brackets or braces of YAML a range needs quotes, and so does `${...}`:
`[gpu1, "gpu[03-08]"]`.

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

`${a.b}` is the value of another key, `${.b}` of a neighbour; `${oc.env:NAME,DEFAULT}` is a variable
of your environment, `${this_python:}` the interpreter that runs the runner. The record of the run
keeps them as they are written.

```yaml
# conf/task/noted.yaml
defaults: [train]
args:
  data: ${oc.env:DATA,/data}
  output: results/${run_id}
  nodes: ${cluster.only}
```

A password or a token belongs into neither: `cluster.secrets: [NAME]` takes it from your
environment, and only the ranks see it.
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
        parts.append(f"### {f'`{name}`' if name else 'Top level'}\n")
        parts.append(f"{_unwrap(section)}\n")
        parts.append("\n".join(_table(section)) + "\n")
    return "\n".join(parts)


def _unwrap(section: type) -> str:
    paragraphs = (inspect.getdoc(section) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _table(section: type) -> Iterator[str]:
    yield "| key | default | legal | meaning |"
    yield "|---|---|---|---|"
    for name, option in keys_of(section).items():
        cells = (
            f"`{name}`",
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
