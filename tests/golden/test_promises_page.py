"""The page of promises: made from the marks and docstrings of the tests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.golden.test_failures import cell
from tests.promises import PROMISES, ROOT, PromiseTest, marked_tests

PAGE = ROOT / "docs" / "promises.md"
HEAD = """\
# Promises and the tests that hold them

`make test` holds every promise and every documented behaviour once; `make test-all` adds all
combinations, which are marked "all" here. This page is made from the tests' marks and docstrings by
`pytest tests/golden/test_promises_page.py --update-golden`.

"""
TESTS = list(marked_tests())
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
REPORTS = {"docs/benchmarks.md", "docs/promises.md"}
"""Pages that report measurements or tests, and so document no behaviour."""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for number, (title, meaning) in PROMISES.items():
        parts.append(f"## {number}. {title}\n\n{meaning}\n")
        parts.append(table(test for test in TESTS if number in test.promises))
    parts.append("## Documented behaviour\n\n")
    for name in sorted({name for test in TESTS for name in test.pages}):
        parts += [f"### {name}\n\n", table(test for test in TESTS if name in test.pages)]
    return "".join(parts).rstrip("\n") + "\n"


def table(tests: Iterable[PromiseTest]) -> str:
    """Return a row for each test."""
    rows = [
        f"| {cell(_sentence(test))} | [{test.path.rpartition('/')[2]}](../{test.path}) "
        f"| {'all' if test.all_only else ''} |\n"
        for test in tests
    ]
    return "".join(["| what holds | test | |\n|---|---|---|\n", *rows, "\n"])


def _sentence(test: PromiseTest) -> str:
    """Return the name of a test in words, and its docstring."""
    words = test.name.removeprefix("test_").replace("_", " ")
    return f"{words[0].upper()}{words[1:]}: {test.doc}"


def test_the_page_is_made_from_the_tests(request: pytest.FixtureRequest) -> None:
    """After a change of a mark or a docstring: `make unit ARGS=--update-golden`."""
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("number", PROMISES)
def test_every_promise_is_held_by_make_test(number: int) -> None:
    """Each has a test that `make test` runs."""
    assert any(number in test.promises and not test.all_only for test in TESTS)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_tried_by_make_test(name: str) -> None:
    """What each page documents has a test that `make test` runs."""
    if name in REPORTS:
        pytest.skip("a report")
    assert any(name in test.pages and not test.all_only for test in TESTS)


def test_marks_name_what_there_is() -> None:
    """No mark names a promise or a page that does not exist."""
    assert {number for test in TESTS for number in test.promises} <= PROMISES.keys()
    assert {name for test in TESTS for name in test.pages} <= set(PAGES)
