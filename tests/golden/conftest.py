"""Golden files: generated text that is reviewed as a diff.

`pytest tests/golden --update-golden` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PLANS = Path(__file__).parent / "plans"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites golden files."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with a golden file, whole; or writes it, with --update-golden."""
    update = bool(request.config.getoption("--update-golden", default=False))

    def check(name: str, text: str) -> None:
        path = PLANS / name
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{name} is new: read it after pytest tests/golden --update-golden"
        assert path.read_text(encoding="utf-8") == text

    return check
