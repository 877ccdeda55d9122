"""Launch commands of a node, and its order."""

from __future__ import annotations

from dataclasses import replace
from string import Template

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.core.model.plan import NodePlan
from runner.core.model.spec import Node, Task
from runner.core.planning.build_plan import build_plan
from runner.core.planning.launch_command import (
    INTERNAL_ENV,
    LOCAL_RANK_MACRO,
    escape,
    torchrun_program,
    user_args_index,
)
from tests.golden.builders import facts, spec

PROGRAMS = [
    ("script", "train.py", ("/opt/venv/bin/python", "-u", "train.py")),
    ("module", "my.train", ("/opt/venv/bin/python", "-u", "-m", "my.train")),
    ("command", "julia", ("julia",)),
]


def second(task: Task, gpu_count: int = 0) -> NodePlan:
    """The share of the second of two nodes."""
    nodes = [Node(name, f"10.0.0.{n}") for n, name in enumerate("ab", start=1)]
    hosts = {
        node.name: facts(node.name, f"eth0 {node.host}/24", gpu_count=gpu_count) for node in nodes
    }
    return build_plan(spec(*nodes, task=task), hosts).node("b")


@pytest.mark.parametrize(("kind", "target", "start"), PROGRAMS)
def test_a_plain_program_is_started_as_a_person_would(
    kind: str, target: str, start: tuple[str, ...]
) -> None:
    """Nobody substitutes anything in its arguments; the supervisor puts the shim before it."""
    share = second(Task("t", kind, target, ("-m", "$5", "${local_rank}"), entry="plain"))
    assert share.command == (*start, "-m", "$5", "${local_rank}")
    shim, rank = share.order.argv[: -len(share.command)], share.order.argv[-len(share.command) :]
    assert (shim[1:3], shim[-1], rank) == (("-I", "-S"), "", share.command)
    prefix = share.order.rank_prefix
    assert prefix == (() if kind == "command" else ("/opt/venv/bin/python",))
    assert share.order.launcher == ""


def started_by_torch(argv: tuple[str, ...], torch: str = "2.13.0") -> list[str]:
    """What torch starts as local rank 3 (`config_from_args` of torch/distributed/run.py)."""
    options, (program, *args) = argv[3 : argv.index("--")], argv[argv.index("--") + 1 :]
    local_rank = "--local_rank=3" if torch.startswith("1.") else "--local-rank=3"
    passed = argv[2] == "torch.distributed.launch" and "--use_env" not in options
    first = [program] if "--no_python" in options else [argv[0], "-u"]
    if "--no_python" not in options:
        first += [*(["-m"] if "-m" in options else []), as_torch_does(program)]
    return [*first, *([local_rank] if passed else []), *map(as_torch_does, args)]


@pytest.mark.parametrize(("kind", "target", "_"), PROGRAMS)
@pytest.mark.parametrize("entry", ["torchrun", "launch"])
@pytest.mark.parametrize("torch", ["1.13.1", "2.13.0", "a fork's"])
def test_what_runs_is_what_is_printed_with_the_shim_before_it(
    kind: str, target: str, _: object, entry: str, torch: str
) -> None:
    """No word of the ranks' own command is another, whatever torchrun substitutes or adds."""
    task = Task("t", kind, f"{target}$x", ("-m", "$5", "${local_rank}", ""), entry=entry)
    nodes = [Node("a", "10.0.0.1")]
    host = replace(facts("a", "eth0 10.0.0.1/24"), host_python="/usr/$a/py", workdir="/w$$")
    host = replace(host, python=replace(host.python, torch=torch))
    share = build_plan(spec(*nodes, task=task, stacks=True), {"a": host}).node("a")
    started = started_by_torch(share.order.argv, torch)
    root = f"/w$$/runs/{share.order.run_id}/a"
    shim = ["/usr/$a/py", "-I", "-S", f"{root}/rank.py", f"{root}/attempt_0", f"{root}/site"]
    assert started[:7] == [*shim, ",".join(INTERNAL_ENV)]
    assert started[7:] == started_by_torch(share.command, torch)
    assert share.order.env.keys() - share.env.keys() == set(INTERNAL_ENV)


@pytest.mark.parametrize(("kind", "target", "_"), PROGRAMS)
@pytest.mark.parametrize("entry", ["torchrun", "launch", "plain"])
def test_arguments_of_the_task_are_found_in_a_command(
    kind: str, target: str, _: object, entry: str
) -> None:
    """They begin after the program, whatever kind it is and whatever starts it."""
    share = second(Task("t", kind, target, ("-u", "-m"), entry=entry))
    assert share.command[user_args_index(share.command, share.order) :] == ("-u", "-m")


def test_a_plain_program_has_its_place_and_all_gpus() -> None:
    """One rank per node, however many GPUs it has; none of torchrun's environment."""
    share = second(Task("t", "script", "t.py", entry="plain"), gpu_count=4)
    assert (share.ranks, share.gpus) == ((1,), (0, 1, 2, 3))
    assert share.env["DIST_BACKEND"] == "nccl"
    assert "CUDA_VISIBLE_DEVICES" not in share.env
    assert share.order.env == share.env
    wanted = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29512", "RANK": "1", "NODE_RANK": "1"}
    wanted |= {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert share.env.items() >= wanted.items()
    assert not any(name.startswith(("TORCHELASTIC_", "PET_")) for name in share.order.env)


def test_launch_is_torchrun_by_another_name() -> None:
    """Both read the same options and the same environment."""
    old, new = (
        second(Task("t", "script", "t.py", entry=entry)) for entry in ("launch", "torchrun")
    )
    assert old.command[2] == "torch.distributed.launch"
    assert old.command[3:] == new.command[3:]
    assert old.order.env == new.order.env


def test_launch_leaves_other_programs_alone() -> None:
    """Without `--use_env` it would want to pass `--local-rank`, and refuses."""
    command = second(Task("t", "command", "julia", entry="launch")).command
    assert command[-4:] == ("--use_env", "--no_python", "--", "julia")


PIECES = st.sampled_from(
    ["$", "$$", "{", "}", "local_rank", "$local_rank", "${", "${x}", "a", " ", "\n", "é"]
)
TEXT = st.lists(PIECES | st.characters(max_codepoint=127), max_size=8).map("".join)


def as_torch_does(arg: str, local_rank: int = 3) -> str:
    """What `macros.substitute` of torch/distributed/elastic/utils/api.py does to an argument."""
    return Template(arg).safe_substitute(local_rank=str(local_rank))


@given(TEXT.filter(lambda text: LOCAL_RANK_MACRO not in text))
@example("pa$$word $5 $local_rank $ {local_rank}")
def test_argument_reaches_the_rank_unchanged(text: str) -> None:
    """What torch does to an escaped argument gives the argument back."""
    assert as_torch_does(escape(text)) == text


@given(TEXT, TEXT)
@example("$", "$")
@example("--r=$$", "{x}")
def test_macro_becomes_the_local_rank(before: str, after: str) -> None:
    """`${local_rank}` is replaced, and nothing else of the argument is."""
    text = before + LOCAL_RANK_MACRO + after
    expected = text.replace(LOCAL_RANK_MACRO, "3")

    assert as_torch_does(escape(text)) == expected


@pytest.mark.parametrize(
    ("task", "script", "expected"),
    [
        pytest.param(
            Task("t", "script", "a$b.py", ("$1",)),
            "a$b.py",
            ("--", "a$$b.py", "$$1"),
            id="script",
        ),
        pytest.param(
            Task("t", "module", "my.train", ("x",)),
            "",
            ("-m", "--", "my.train", "x"),
            id="module",
        ),
        pytest.param(
            Task("t", "command", "./a$b", ("$1",)),
            "",
            ("--no_python", "--", "./a$b", "$$1"),
            id="command, which torchrun leaves as it is",
        ),
    ],
)
def test_program_follows_the_options(task: Task, script: str, expected: tuple[str, ...]) -> None:
    """Each kind of task is named as torchrun wants it; what torchrun substitutes is escaped."""
    assert torchrun_program(task, script) == expected
