"""Text for shells, tried in a real one."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.core import shell

WORD = st.text("".join(map(chr, range(1, 256))) + "→🙂", max_size=10)


def words(text: str) -> list[str]:
    env = {"HOME": "/home/ada"}
    argv = ["sh", "-c", f"printf '%s\\0' {text}"]
    done = subprocess.run(argv, env=env, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=20)
@given(st.lists(WORD, min_size=1, max_size=5))
@example(["", "it's", '"', "$HOME", "`id`", "a b", "\n", "\\", "*", "~", "~/x", "=ls", "!!"])
def test_any_argv_survives_a_shell(argv: list[str]) -> None:
    """A shell splits a line back into exactly the words it was made of."""
    assert words(shell.line(argv)) == argv


def test_word_that_zsh_would_look_up_is_quoted() -> None:
    """In zsh a word that begins with `=` is the path of a program; quoted, it is not."""
    assert shell.assignments({"NCCL_SOCKET_IFNAME": "=eth0"}) == "NCCL_SOCKET_IFNAME='=eth0'"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("~", "/home/ada"),
        ("~/my code", "/home/ada/my code"),
        ("~bob/x", "~bob/x"),
        ("/data/~/x", "/data/~/x"),
    ],
)
def test_home_is_expanded_at_the_other_end(path: str, expected: str) -> None:
    """A leading `~/`, and nothing else of a path, is for the shell there to expand."""
    assert words(shell.path(path)) == [expected]


@settings(max_examples=10)
@given(WORD, WORD)
def test_assignments_give_exactly_these_values(value: str, secret: str) -> None:
    """Values are quoted; references take theirs from the shell, whole."""
    text = shell.assignments({"A": value}, references=["KEY"])
    script = f'{text} sh -c \'printf "%s\\0%s" "$A" "$KEY"\''
    done = subprocess.run(
        ["sh", "-c", script], env={"KEY": secret}, capture_output=True, check=True
    )

    assert done.stdout.decode().split("\0") == [value, secret]
    assert text.endswith(' KEY="${KEY}"')
