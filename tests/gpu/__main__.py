"""Entry of `make gpu`: pytest over this folder and a table, or one line where no GPU is.

Arguments are pytest's. Exit code 1 if a check failed, 2 without a GPU.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.gpu.machine import NoGpuError, find_machine

FLAGS = (
    "--verbose --no-header --no-summary --tb=short "
    "-p no:randomly -p no:cacheprovider -p no:unraisableexception"
)
"""In the order of the file; failures are shown with the table, once, whatever they left open."""

MAX_DETAIL_LINES = 25


class Table:
    """Plugin of pytest that makes a row of each check, and keeps the ends of what failed.

    The figure of a check is what was measured, why it was skipped, or how the failure begins.
    """

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.failures: list[str] = []
        self.results: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcome of a check itself, or what went wrong around it."""
        if report.when != "call" and report.passed:
            return
        words, _, parameters = report.location[2].removeprefix("test_").partition("[")
        check = words.replace("_", " ") + (f": {parameters[:-1]}" if parameters else "")
        figure = str(dict(report.user_properties).get("figure", ""))
        if report.skipped and isinstance(report.longrepr, tuple):
            figure = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            details = report.longreprtext.rstrip().splitlines()
            crash = getattr(report.longrepr, "reprcrash", None)
            figure = crash.message.partition("\n")[0] if crash else details[0]
            self.failures += ["", f"{check}:", "", "~~~text", *details[-MAX_DETAIL_LINES:], "~~~"]
        figure = " ".join(figure.split()).replace("|", "\\|")
        result = "ok" if report.passed else report.outcome
        self.results[result] += 1
        self.rows.append(f"| {check} | {result} | {figure} | {report.duration:.1f} |")


def main() -> int:
    try:
        machine = find_machine()
    except NoGpuError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    table = Table()
    began = time.monotonic()
    code = pytest.main([*FLAGS.split(), str(Path(__file__).parent), *sys.argv[1:]], plugins=[table])
    seconds = time.monotonic() - began
    counts = ", ".join(f"{table.results[name]} {name}" for name in ("ok", "skipped", "failed"))
    print(f"\n`make gpu`: {counts} in {seconds:.0f} s\n\n{machine.describe()}\n")
    print("| check | result | figure | seconds |", "|---|---|---|--:|", sep="\n")
    print(*table.rows, *table.failures, sep="\n")
    return 130 if code == pytest.ExitCode.INTERRUPTED else min(int(code), 1)


if __name__ == "__main__":
    raise SystemExit(main())
