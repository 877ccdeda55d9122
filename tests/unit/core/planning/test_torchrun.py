"""torchrun's command line, and the arguments that reach the task."""

from __future__ import annotations

from string import Template

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.core.model.spec import Task
from runner.core.planning import launch_command

PIECES = st.sampled_from(
    ["$", "$$", "{", "}", "local_rank", "$local_rank", "${", "${x}", "a", " ", "\n", "é"]
)
TEXT = st.lists(PIECES | st.characters(max_codepoint=127), max_size=8).map("".join)


def as_torch_does(arg: str, local_rank: int = 3) -> str:
    """What `macros.substitute` of torch/distributed/elastic/utils/api.py does to an argument."""
    return Template(arg).safe_substitute(local_rank=str(local_rank))


@given(TEXT.filter(lambda text: launch_command.LOCAL_RANK_MACRO not in text))
@example("pa$$word $5 $local_rank $ {local_rank}")
def test_argument_reaches_the_rank_unchanged(text: str) -> None:
    """What torch does to an escaped argument gives the argument back."""
    assert as_torch_does(launch_command.escape(text)) == text


@given(TEXT, TEXT)
@example("$", "$")
@example("--r=$$", "{x}")
def test_macro_becomes_the_local_rank(before: str, after: str) -> None:
    """`${local_rank}` is replaced, and nothing else of the argument is."""
    text = before + launch_command.LOCAL_RANK_MACRO + after
    expected = text.replace(launch_command.LOCAL_RANK_MACRO, "3")

    assert as_torch_does(launch_command.escape(text)) == expected


@pytest.mark.parametrize(
    ("task", "script", "shim", "expected"),
    [
        pytest.param(
            Task("t", "script", "a$b.py", ("$1",)),
            "a$b.py",
            "",
            ("--", "a$$b.py", "$$1"),
            id="script",
        ),
        pytest.param(
            Task("t", "module", "my.train", ("x",)),
            "",
            "",
            ("-m", "--", "my.train", "x"),
            id="module",
        ),
        pytest.param(
            Task("t", "command", "./a$b", ("$1",)),
            "",
            "",
            ("--no_python", "--", "./a$b", "$$1"),
            id="command, which torchrun leaves as it is",
        ),
        pytest.param(
            Task("t", "command", "./a$b", ("$1",)),
            "",
            "/run/$x/rank",
            ("--no_python", "--", "/run/$x/rank", "./a$$b", "$$1"),
            id="command through the shim, where it is an argument",
        ),
    ],
)
def test_program_follows_the_options(
    task: Task, script: str, shim: str, expected: tuple[str, ...]
) -> None:
    """Each kind of task is named as torchrun wants it; what torchrun substitutes is escaped."""
    assert launch_command.torchrun_program(task, script, shim) == expected
