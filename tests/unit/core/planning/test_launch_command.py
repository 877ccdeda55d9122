"""Launch commands of a node, and its order."""

from __future__ import annotations

from dataclasses import replace
from string import Template
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node, Task
from runner.core.wire.order import LOCAL_RANK_MACRO, command_words, environment, escape
from runner.core.wire.plan import NodePlan
from tests.golden.builders import facts, spec

PYTHON = "/opt/venv/bin/python"
INTERNAL_ENV = ("PET_LOG_DIR", "PET_SHUTDOWN_TIMEOUT")
OLD_START = "import sys; del sys.path[0]; from torch.distributed.run import main; sys.exit(main())"


def planned(task: Task, version: str = "3.12.1", **changes: Any) -> NodePlan:
    host = replace(facts("a", "eth0 10.0.0.1/24"), **changes)
    host = replace(host, python=replace(host.python, version=version))
    return build_plan(spec(Node("a", "10.0.0.1"), task=task), {"a": host}).node("a")


def started_by_torch(argv: tuple[str, ...]) -> list[str]:
    """What torch starts as local rank 3 (`config_from_args` of torch/distributed/run.py)."""
    assert argv[1:4] == ("-P", "-m", "torch.distributed.run")
    options = argv[4 : argv.index("--")]
    program, *args = argv[argv.index("--") + 1 :]
    first = [program] if "--no_python" in options else [argv[0], "-u"]
    if "--no_python" not in options:
        first += [*(["-m"] if "-m" in options else []), as_torch_does(program)]
    return [*first, *map(as_torch_does, args)]


@pytest.mark.parametrize(
    ("kind", "target"), [("script", "train.py"), ("module", "my.train"), ("command", "julia")]
)
def test_what_runs_is_what_is_printed_with_the_shim_before_it(kind: str, target: str) -> None:
    """No word of the ranks' own command is another, whatever torchrun substitutes or adds."""
    task = Task(name="t", kind=kind, target=f"{target}$x", words=("-m", "$5", "${local_rank}", ""))
    share = planned(task, host_python="/usr/$a/py", workdir="/w$$")
    started = started_by_torch(command_words(share.order))
    root = f"/w$$/runs/{share.order.run_id}/a"
    shim = ["/usr/$a/py", "-I", "-S", f"{root}/rank.py", f"{root}/attempt_0", f"{root}/site"]
    assert started[:7] == [*shim, ",".join(INTERNAL_ENV)]
    assert started[7:] == started_by_torch(share.command)
    assert environment(share.order).keys() - share.env.keys() == set(INTERNAL_ENV)


@pytest.mark.parametrize(
    ("version", "start"),
    [
        ("3.12.1", ("-P", "-m", "torch.distributed.run")),
        ("3.10.13", ("-c", OLD_START)),
        ("", ("-m", "torch.distributed.run")),  # no host was asked
    ],
)
def test_torchrun_takes_no_module_from_the_working_folder(
    version: str, start: tuple[str, ...]
) -> None:
    """`python -m` alone looks there first; `-P` is new in 3.11."""
    share = planned(Task(name="t", kind="script", target="train.py"), version)
    for words in (share.command, command_words(share.order)):
        assert words[1 : 1 + len(start)] == start


@pytest.mark.parametrize(
    ("kind", "target", "start", "entry"),
    [
        ("script", "train.py", (PYTHON, "-u", "train.py"), "torchrun"),
        ("module", "my.train", (PYTHON, "-u", "-m", "my.train"), "torchrun"),
        ("command", "julia", ("julia",), "plain"),
    ],
)
def test_names_are_taken_out_just_before_the_program(
    kind: str, target: str, start: tuple[str, ...], entry: str
) -> None:
    """By the shim, and by env in what is pasted: torchrun sets some of them itself."""
    removed: dict[str, str | None] = {"RANK": None, "DIST_BACKEND": None, "MY": None}
    words = ("-u", "MY")
    share = planned(Task("t", kind=kind, target=target, words=words, env=removed, entry=entry))
    env_words = ("env", *(word for name in removed for word in ("-u", name)))
    shown = (*env_words, *start, "-u", "MY")
    assert share.command[-len(shown) :] == shown
    assert share.command[-share.arg_count :] == ("-u", "MY")
    argv = command_words(share.order)
    hidden = argv[argv.index("-S") + 4]
    assert hidden.split(",")[-3:] == list(removed)
    assert removed.keys().isdisjoint(share.env)
    assert ("RANK" in environment(share.order)) == (entry == "plain"), (
        "the shim files its logs by it"
    )


PIECES = st.sampled_from(
    ["$", "$$", "{", "}", "local_rank", "$local_rank", "${", "${x}", "a", " ", "\n", "é"]
)
TEXT = st.lists(PIECES | st.characters(max_codepoint=127), max_size=8).map("".join)


def as_torch_does(arg: str, local_rank: int = 3) -> str:
    """What `macros.substitute` of torch/distributed/elastic/utils/api.py does to an argument."""
    return Template(arg).safe_substitute(local_rank=str(local_rank))


@given(TEXT, TEXT)
@example("pa$$word $5 $local_rank $", "{local_rank}")
@example("--r=$$", "{x}")
def test_macro_becomes_the_local_rank(before: str, after: str) -> None:
    """`${local_rank}` is replaced; nothing else of an argument is, with one in it or without."""
    text = before + LOCAL_RANK_MACRO + after
    expected = text.replace(LOCAL_RANK_MACRO, "3")
    assert as_torch_does(escape(text)) == expected
    assert LOCAL_RANK_MACRO in after or as_torch_does(escape(after)) == after
