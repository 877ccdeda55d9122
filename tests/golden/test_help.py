"""The texts of `--help`, of the program and of every verb, on two widths of a terminal."""

from __future__ import annotations

import re

import pytest

from runner.cli.main import HELP, main
from runner.verbs import verb_names
from tests.golden.conftest import Check


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
