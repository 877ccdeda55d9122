"""What is said of mistakes, and of where values come from; and the help of each verb."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from runner.cli.main import HELP, main
from runner.verbs import verb_names
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


def printed(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(words.split()) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80])
def test_help_fits_the_screen(
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    check_screen: Check,
) -> None:
    """That of the program has 25 lines and every verb, those of verbs 28 lines of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    pages = {}
    for words in ("--help", *(f"{name} -h" for name in verb_names())):
        pages[words] = printed(capsys, words)
        assert max(map(len, pages[words].splitlines())) <= columns, words
    assert pages["--help"].count("\n") <= 25
    if columns == 80:
        assert [name for name in verb_names() if not re.search(rf"\b{name}\b", HELP)] == []
        assert [words for words, page in pages.items() if page.count("\n") > 28] == []
        page = "\n".join(f"$ runner {words}\n{text}" for words, text in pages.items())
        check_screen("help-80.txt", page)


def test_each_value_is_explained(
    here: Here, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that set it, the winner first; of a node by all entries that name it."""
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("COLUMNS", "100")

    def explained(words: list[str]) -> str:
        said = here(*words)
        assert bool(said.err) == bool(said.code), said
        return f"{said.out}{said.err}"

    replay("explain.txt", explained)
