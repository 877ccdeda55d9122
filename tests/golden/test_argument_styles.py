"""Programs of every style of arguments, and what they read of YAML, the words typed and a sweep."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from runner.core.launch_request import LaunchRequest
from tests.golden.here import Here
from tests.lab.waiting import PATIENCE

ARGPARSE = "import argparse, json\np = argparse.ArgumentParser()\nadd = p.add_argument\n"
PRINTED = "print(json.dumps(vars(p.parse_args())))\n"


@dataclass
class Style:
    """A program, its task, words typed before and after `--`; what two runs of a sweep read."""

    program: str
    task: str
    typed: str
    read: list[Any]


STYLES = {
    "positional": Style(
        ARGPARSE + "add('data'), add('out'), add('--sizes', nargs='*')\n" + PRINTED,
        "args: {sizes: [01, 2e3]}\nargs_before: [/data]\nargs_after: [--, out]",
        "task.args_before=/d1,/d2",
        [{"data": each, "out": "out", "sizes": ["01", "2e3"]} for each in ("/d1", "/d2")],
    ),
    "subcommand": Style(
        ARGPARSE + "sub = p.add_subparsers(dest='verb')\n"
        "fit = sub.add_parser('fit')\nfit.add_argument('--lr')\nsub.add_parser('test')\n" + PRINTED,
        "args_before: fit\nargs: {lr: 1e-3}",
        "task.args.lr=1e-4,0.10",
        [{"verb": "fit", "lr": each} for each in ("1e-4", "0.10")],
    ),
    "repeated": Style(
        ARGPARSE + "add('--config', action='append'), add('--tag', action='append')\n" + PRINTED,
        "args: {config: [[a.yaml], [b.yaml]]}",
        "task.args.config=[[c],[d]],[[e]] -- --tag x --tag 16:9",
        [{"config": each, "tag": ["x", "16:9"]} for each in (["c", "d"], ["e"])],
    ),
    "dotted": Style(
        ARGPARSE + "add('--model.lr'), add('--model.opt.name')\n" + PRINTED,
        "args: {model.lr: 3.10, model: {opt: {name: off}}}",
        "task.args.model.lr=0.20,1_0 -- --model.opt.name on",
        [{"model.lr": each, "model.opt.name": "on"} for each in ("0.20", "1_0")],
    ),
    "store_true": Style(
        ARGPARSE + "[add(f, action='store_true') for f in ('--amp', '--ema')]\n" + PRINTED,
        "args: {amp: false, ema: true}",
        "task.args.amp=true,false",
        [{"amp": each, "ema": True} for each in (True, False)],
    ),
    "json": Style(
        ARGPARSE + "add('--extra', type=json.loads), add('--more', type=json.loads)\n" + PRINTED,
        'args: {extra: \'{"a": [1, null], "b c": 0.10}\'}',
        """'task.args.extra="{\\"a\\":1}",[]' -- --more '{"x": "y z", "n": {}}'""",
        [{"extra": each, "more": {"x": "y z", "n": {}}} for each in ({"a": 1}, None)],
    ),
    "click": Style(
        "import click, json\n@click.group()\n@click.option('--seed')\ndef main(seed): pass\n"
        "@main.command()\n@click.option('--amp/--no-amp', default=True)\n"
        "@click.option('-l', '--layer', multiple=True)\n@click.argument('data')\n"
        "def fit(**values): print(json.dumps(values))\nmain()\n",
        "args_before: [--seed, 007, fit]\nargs: {amp: false, -l: [[1], [2]]}\nargs_false: no\n"
        "args_after: [/data]",
        "task.args.amp=true,false",
        [{"amp": each, "layer": ["1", "2"], "data": "/data"} for each in (True, False)],
    ),
    "hydra": Style(
        "import json, hydra\nfrom hydra.core.config_store import ConfigStore\n"
        "from omegaconf import OmegaConf\n"
        "ConfigStore.instance().store('app', {'lr': 1, 'task': 'x', 'model': {'depth': 3}})\n"
        "@hydra.main(version_base=None, config_path=None, config_name='app')\n"
        "def main(config): print(json.dumps(OmegaConf.to_container(config)))\nmain()\n",
        "args_style: hydra\nargs: {model: {depth: 4}, hydra.output_subdir: null, hydra.run.dir: .}",
        "task.args.lr=0.5,2 -- task=y +new=[a,b] hydra/job_logging=none",
        [{"lr": each, "task": "y", "model": {"depth": 4}, "new": ["a", "b"]} for each in (0.5, 2)],
    ),
    "equals": Style(  # as absl's flags and nanoGPT's configurator
        "import json, sys\nprint(json.dumps(sys.argv[1:]))\n",
        "args_style: equals\nargs: {compile: false, batch_size: 0x10, init_from: gpt2-xl}",
        "task.args.batch_size=08,1e1 -- --nolog",
        [
            ["--compile=False", f"--batch_size={each}", "--init_from=gpt2-xl", "--nolog"]
            for each in ("08", "1e1")
        ],
    ),
}


def read_by(run: LaunchRequest, here: Here) -> object:
    """Return what the program of a composed run prints."""
    task = run.spec.task
    argv = [sys.executable, task.target, *task.words]
    done = subprocess.run(
        argv, cwd=here.folder, capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.promise(14)
@pytest.mark.parametrize("name", STYLES)
def test_a_program_reads_what_was_written(here: Here, name: str) -> None:
    """In the task's file, on the command line, after `--`, and in each run of a sweep."""
    style = STYLES[name]
    task = f"defaults: [base]\nscript: styled.py\nentry: plain\n{style.task}\n"
    here.write({"styled.py": style.program, "conf/task/styled.yaml": task})
    done = here("-m", "task=styled", *shlex.split(style.typed))
    assert done.code == 0, done.err
    assert [read_by(run, here) for run in done.runs] == style.read
