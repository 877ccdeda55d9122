"""Golden files: generated text that is reviewed as a diff.

`pytest tests/golden --update-golden` writes them anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.golden.here import MINE, Here

PLANS = Path(__file__).parent / "plans"
SCREENS = Path(__file__).parent / "screens"

Check = Callable[[str, str], None]
Replay = Callable[[str, Callable[[list[str]], str]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Check:
    """Compares text with a golden file, whole; or writes it, with --update-golden."""
    return functools.partial(_check, request, PLANS)


@pytest.fixture
def check_screen(request: pytest.FixtureRequest) -> Check:
    """Does so with what a person sees."""
    return functools.partial(_check, request, SCREENS)


@pytest.fixture
def replay(here: Here, check_screen: Check) -> Replay:
    """Types the lines of a page of screens again, and compares what is said of them."""

    def type_again(name: str, answer: Callable[[list[str]], str]) -> None:
        page = (SCREENS / name).read_text(encoding="utf-8")
        check_screen(name, here.replay(page, answer))

    return type_again


def _check(request: pytest.FixtureRequest, folder: Path, name: str, text: str) -> None:
    path = folder / name
    if request.config.getoption("--update-golden", default=False):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{name} is new: read it after pytest tests/golden --update-golden"
    assert path.read_text(encoding="utf-8") == text


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    """A folder with a task and a cluster of the user's own, in which the test stands.

    Nothing but what the test writes is in it at the end.
    """
    here = Here(tmp_path / "project", capsys)
    here.write(MINE)
    monkeypatch.chdir(here.folder)
    monkeypatch.setenv("PWD", str(here.folder))
    yield here
    assert set(here.folder.rglob("*")) <= here.written
