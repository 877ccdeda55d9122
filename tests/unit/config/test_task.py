"""The task: its arguments become words with the same values; each entry takes its settings."""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.config.overrides import hydra_value, parse_overrides, with_arguments
from runner.config.task import render_arguments
from runner.config.validation import Validator
from runner.core.errors import Problem
from tests.unit.config.test_config import problems_of as problems_with
from tests.unit.config.test_config import spec_of

PLAIN = {"task.entry": "plain"}
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
# As a value, `--` alone is lost in argparse itself before Python 3.13.
WORD = TEXT.filter(lambda text: text != "--") | st.sampled_from(
    ["-1", "-x", "--lr=1", "$HOME", "a b"]
)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def words_of(args: object, style: str = "argparse") -> list[str]:
    """Return the words, when nothing is wrong."""
    problems: list[Problem] = []
    words = render_arguments(Validator(problems), args, style)
    assert problems == []
    return words


def problems_of(args: object, style: str = "argparse") -> list[str]:
    """Return what is wrong, as it is printed."""
    problems: list[Problem] = []
    render_arguments(Validator(problems), args, style)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (None, []),
        ({}, []),
        ({"lr": 0.1}, ["--lr", "0.1"]),
        ({"lr": 1e-05}, ["--lr", "1e-05"]),
        ({"x": 1}, ["--x", "1"]),
        ({"-x": 1}, ["-x", "1"]),
        ({"flag": True, "no": False, "null": None, "empty": []}, ["--flag"]),
        ({"x": -1}, ["--x=-1"]),
        ({"x": "-a b"}, ["--x=-a b"]),
        ({"x": ""}, ["--x", ""]),
        ({"x": "true"}, ["--x", "true"]),
        ({"sizes": [1, 2.5, "a b"]}, ["--sizes", "1", "2.5", "a b"]),
        ({"x": [-1, -2.5, -1e-05]}, ["--x", "-1", "-2.5", "-0.00001"]),
        ({"x": [True, False]}, ["--x", "true", "false"]),
        ({"text": "$a 'b' \"c\"\n${d}"}, ["--text", "$a 'b' \"c\"\n${d}"]),
    ],
)
def test_argparse_style(args: object, words: list[str]) -> None:
    """Flags as a person would type them."""
    assert words_of(args) == words


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"lr": 0.1, "name": "a/b.c", "n": None, "t": True},
            ["lr=0.1", "name=a/b.c", "n=null", "t=true"],
        ),
        ({"model": {"depth": 3, "opt": {"lr": 1}}}, ["model.depth=3", "model.opt.lr=1"]),
        ({"+new": {"key": 1}}, ["+new.key=1"]),
        ({"db/engine": "mysql"}, ["db/engine=mysql"]),
        ({"x": "a b"}, ['x="a b"']),
        ({"x": ""}, ['x=""']),
        ({"x": "1"}, ['x="1"']),
        ({"x": "True"}, ['x="True"']),
        ({"x": 'say "hi"\\'}, ['x="say \\"hi\\"\\\\"']),
        ({"x": [1, "a,b", None]}, ['x=[1,"a,b",null]']),
        ({"x": {}}, ["x={}"]),
    ],
)
def test_hydra_style(args: object, words: list[str]) -> None:
    """Overrides, quoted only where the grammar needs it."""
    assert words_of(args, "hydra") == words


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"lr": 1e-05, "n": 1, "name": "a b"}, ["--lr=1e-05", "--n=1", "--name=a b"]),
        ({"compile": False, "eval_only": True}, ["--compile=False", "--eval_only=True"]),
        ({"null": None, "text": "", "x": -1, "true": "true"}, ["--text=", "--x=-1", "--true=true"]),
        ({"-x": 1}, ["-x=1"]),
    ],
)
def test_equals_style(args: object, words: list[str]) -> None:
    """One word for each, as scripts read them that have no argparse; bools are Python's."""
    assert words_of(args, "equals") == words


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--x", 1, "a b"], ["--x", "1", "a b"]),
        ("--x 1 'a b' $HOME", ["--x", "1", "a b", "$HOME"]),
        ([], []),
        (None, []),
    ],
)
def test_raw_style(args: object, words: list[str]) -> None:
    """Words as they are, or a text split as a shell would; nothing is expanded."""
    assert words_of(args, "raw") == words


@pytest.mark.parametrize(
    ("args", "style", "text"),
    [
        (
            {"model": {"lr": 1}},
            "argparse",
            (
                "task.args.model: {'lr': 1} has no form as one word\n"
                "    task.args_style=hydra takes nested values"
            ),
        ),
        (
            {"x": ["-a"]},
            "argparse",
            (
                "task.args.x: a program would take '-a' in a list for a flag\n"
                "    task.args_style=raw passes words as they are"
            ),
        ),
        (
            {"x": [1, 2]},
            "equals",
            (
                "task.args.x: [1, 2] has no form as one value\n"
                "    task.args_style=raw passes words as they are"
            ),
        ),
        ({"a b": 1}, "argparse", "task.args.a b: 'a b' is no name for a flag"),
        ({"a b": 1}, "hydra", "task.args.a b: 'a b' is no key that Hydra takes"),
        (
            ["a"],
            "hydra",
            "task.args: is ['a']\n    raw takes a list of words, the others a mapping",
        ),
        (
            {"a": 1},
            "raw",
            "task.args: is {'a': 1}\n    raw takes a list of words, the others a mapping",
        ),
        ("a 'b", "raw", 'task.args: "a \'b" cannot be split into words: no closing quotation'),
        ({"a": "\0"}, "hydra", "task.args: no command line can hold a NUL character"),
    ],
)
def test_what_has_no_form_is_told(args: object, style: str, text: str) -> None:
    """With the style that has one."""
    assert problems_of(args, style) == [text]


@given(
    text=WORD,
    number=NUMBER,
    texts=st.lists(WORD.filter(lambda t: not t.startswith("-")), min_size=1),
)
def test_argparse_reads_back_what_was_asked(text: str, number: float, texts: list[str]) -> None:
    """Any text and number arrives, whatever it begins with and holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--text")
    parser.add_argument("--number", type=float)
    parser.add_argument("--texts", nargs="*")
    parser.add_argument("--numbers", type=float, nargs="*")
    parser.add_argument("--flag", action="store_true")
    args = {"texts": texts, "flag": True, "number": number, "text": text, "numbers": [number, 1]}
    read = parser.parse_args(words_of(args))
    assert (read.text, read.texts, read.flag) == (text, texts, True)
    assert math.isclose(read.number, number, rel_tol=1e-12)
    assert [math.isclose(a, b) for a, b in zip(read.numbers, [number, 1], strict=True)] == [
        True
    ] * 2


@given(
    st.recursive(
        TEXT
        | NUMBER
        | st.booleans()
        | st.none()
        | st.sampled_from(["nan", "1e3", "a:b", "\\", '"']),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.from_regex(r"k[a-z0-9_]{0,4}", fullmatch=True), inner, max_size=3)
        ),
        max_leaves=5,
    )
)
def test_hydra_reads_back_what_was_asked(value: Any) -> None:
    """Hydra's own parser finds the same value and the same type."""
    override = OverridesParser.create().parse_override(f"key={hydra_value(value)}")
    assert not override.is_sweep_override()
    assert override.value() == value
    assert type(override.value()) is type(value)


@given(st.lists(WORD | st.text("\\${}a.", max_size=6) | st.just("???"), max_size=3))
def test_words_for_the_program_are_taken_as_they_are(words: list[str]) -> None:
    """Through the grammar of overrides and the interpolations of OmegaConf."""
    value = with_arguments(["first"], words)
    (override,) = parse_overrides([f"words={hydra_value(value)}"])
    assert not override.is_sweep_override()
    for read in (value, override.value()):
        config = OmegaConf.create({"words": read})
        assert OmegaConf.to_container(config, resolve=True) == {"words": ["first", *words]}
    assert spec_of({"task.extra_args": words}).task.args[-len(words) or 9 :] == tuple(words)


@pytest.mark.parametrize(
    ("changes", "args"),
    [
        ({"task.args": {"lr": 1}}, ("--local_rank=${local_rank}", "--lr", "1")),
        (
            {"task.args": {"lr": 1}, "task.args_style": "hydra"},
            ("--local_rank=${local_rank}", "lr=1"),
        ),
        (
            {"task.args": ["a", "$b"], "task.args_style": "raw"},
            ("--local_rank=${local_rank}", "a", "$b"),
        ),
        (
            {"task.script": None, "task.command": "python old.py", "task.args": {"lr": 1}},
            ("old.py", "--local_rank=${local_rank}", "--lr", "1"),
        ),
    ],
    ids=["argparse", "hydra", "raw", "command"],
)
def test_the_local_rank_comes_before_the_other_arguments(
    changes: dict[str, Any], args: tuple[str, ...]
) -> None:
    """In every style of arguments; of a command it is one of the program's."""
    assert spec_of({"task.local_rank_arg": "--local_rank", **changes}).task.args == args


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"task.local_rank_arg": "local rank"},
            (
                "task.local_rank_arg: 'local rank' is no flag\n"
                "    such as --local_rank, or --local-rank"
            ),
        ),
        (
            {"task.local_rank_arg": "--local_rank", "task.entry": "launch"},
            (
                "task.local_rank_arg: torch.distributed.launch passes --local-rank by itself\n"
                "    choose task.entry=torchrun, which passes --local_rank, or leave it out"
            ),
        ),
        (
            {"task.local_rank_arg": "--local_rank", **PLAIN},
            (
                "task.local_rank_arg: entry plain starts one process per node, so that there is "
                "no local rank\n    choose task.entry=torchrun, or leave it out"
            ),
        ),
        (
            {"cluster.nodes": {"gpu[1-2]": {}, "gpu2": {"nproc_per_node": 3}}, **PLAIN},
            (
                "cluster.nodes.gpu2.nproc_per_node: entry plain starts one process per node, which "
                "may start its own workers\n    set it to 1 or auto, or task.entry=torchrun"
            ),
        ),
        (
            {"rendezvous.backend": "c10d", **PLAIN},
            (
                "rendezvous.backend: c10d is torchrun's, and entry plain starts none\n"
                "    choose rendezvous=static, or task.entry=torchrun"
            ),
        ),
        (
            {"torchrun.monitor_interval": 1, **PLAIN},
            (
                "torchrun.monitor_interval: entry plain starts no torchrun\n"
                "    leave it out, or set task.entry=torchrun"
            ),
        ),
        (
            {"torchrun.rdzv_conf": {"timeout": 1}, **PLAIN},
            (
                "torchrun.rdzv_conf: entry plain starts no torchrun\n"
                "    leave it out, or set task.entry=torchrun"
            ),
        ),
        (
            {"task.args_expand": True, "task.entry": "launch"},
            (
                "task.args_expand: launch decides on the ranks after the plan is made\n"
                "    set task.entry=plain, or leave it out: programs read RANK and the like from "
                "their environment, and task.local_rank_arg passes the local rank"
            ),
        ),
        (
            {"task.entry": "mpirun"},
            (
                "task.entry: 'mpirun' is not legal; choose torchrun, launch, plain or srun\n"
                "    did you mean srun?"
            ),
        ),
    ],
)
def test_what_an_entry_cannot_do_is_one_problem(changes: dict[str, Any], problem: str) -> None:
    """It names the key, and what takes its place."""
    assert problems_with(changes) == [problem]


def test_a_plain_program_can_be_relaunched() -> None:
    """A relaunch is ours, and needs no torchrun."""
    spec = spec_of({"relaunch.max": 2, "cluster.nproc_per_node": 2, **PLAIN})
    assert spec.task.is_plain
    assert spec.relaunch.max == 2
