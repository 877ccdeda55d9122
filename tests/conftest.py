"""What every test's report has."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows why a test failed that passed at a later try: else nobody could mend its race."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"a try of {report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)
