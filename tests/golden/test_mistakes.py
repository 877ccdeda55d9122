"""What is said of mistakes on the command line, in files and in values, word for word."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.golden.conftest import SCREENS, Check, Replay
from tests.golden.here import Here
from tests.golden.test_specs import problems_of

SECRET = "hunter2"


@pytest.fixture
def refusal(here: Here, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], str]:
    """What is said of words that are refused."""
    monkeypatch.delenv("NOPE", raising=False)

    def say(words: list[str]) -> str:
        said = here(*words)
        assert (said.code, said.out, said.runs, "Traceback" in said.err) == (2, "", [], False), said
        return said.err

    return say


@pytest.mark.promise(8)
@pytest.mark.parametrize("page", ["mistakes-typed.txt", "mistakes-in-files.txt"])
def test_mistakes(page: str, refusal: Callable[[list[str]], str], replay: Replay) -> None:
    """Each is told with where it is, what is legal and what next, and hides no other."""
    replay(page, refusal)


def test_a_word_too_long_for_a_path(refusal: Callable[[list[str]], str]) -> None:
    """Looking for a file of that name fails; it is a mistake as any other."""
    for start in ("", "~/", "cluster=", "--config-dir="):
        assert "fault" not in refusal([f"{start}{'x' * 300}"])


@pytest.mark.promise(8)
def test_every_refusal_says_where_what_and_what_next(check_screen: Check) -> None:
    """One mistake is one problem, all are told at once, and a secret is in none of them.

    To add a case write its keys on the page.
    """
    page = []
    for line in (SCREENS / "refusals.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            problems = problems_of(json.loads(line.replace("***", SECRET)), {"TOKEN": SECRET})
            assert SECRET not in "".join(problems)
            page.append(line + "".join(f"\nerror: {problem}" for problem in problems))
    check_screen("refusals.txt", "\n".join(page) + "\n")
