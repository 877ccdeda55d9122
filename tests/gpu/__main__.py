"""Entry of `make gpu`: pytest over this folder and a table, or one line where no GPU is.

Arguments are pytest's. Exit code 1 if a check failed, 2 without a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gpu.machine import NoGpuError, find_machine

FLAGS = (
    "--verbose --no-header --no-summary --tb=short "
    "-p no:randomly -p no:cacheprovider -p no:unraisableexception"
)
"""In the order of the file; failures are shown with the table, once, whatever they left open."""

MAX_DETAIL_LINES = 25


@dataclass(frozen=True)
class Row:
    """One check: its figure is what was measured, why it was skipped, or how the failure begins."""

    check: str
    result: str
    figure: str
    seconds: float
    details: str = ""


class RowCollector:
    """Plugin of pytest that makes a row of each check."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcome of a check itself, or what went wrong around it."""
        if report.when != "call" and report.passed:
            return
        words, _, parameters = report.location[2].removeprefix("test_").partition("[")
        check = words.replace("_", " ") + (f": {parameters[:-1]}" if parameters else "")
        figure = str(dict(report.user_properties).get("figure", ""))
        details = report.longreprtext if report.failed else ""
        if report.skipped and isinstance(report.longrepr, tuple):
            figure = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            figure = (crash.message if crash else details).partition("\n")[0]
        result = "ok" if report.passed else report.outcome
        self.rows.append(Row(check, result, figure, report.duration, details))


def run_checks(*argv: str) -> tuple[int, list[Row]]:
    collector = RowCollector()
    code = pytest.main([*FLAGS.split(), *argv], plugins=[collector])
    return 130 if code == pytest.ExitCode.INTERRUPTED else min(int(code), 1), collector.rows


def render(machine: str, rows: list[Row]) -> str:
    """Return what is pasted into an issue: machine, a row per check, the ends of what failed."""
    results = [row.result for row in rows]
    counts = ", ".join(f"{results.count(name)} {name}" for name in ("ok", "skipped", "failed"))
    total = sum(row.seconds for row in rows)
    lines = [f"`make gpu`: {counts} in {total:.0f} s", "", machine, ""]
    lines += ["| check | result | figure | seconds |", "|---|---|---|--:|"]
    for row in rows:
        figure = " ".join(row.figure.split()).replace("|", "\\|")
        lines.append(f"| {row.check} | {row.result} | {figure} | {row.seconds:.1f} |")
    for row in rows:
        if row.details:
            end = row.details.rstrip().splitlines()[-MAX_DETAIL_LINES:]
            lines += ["", f"{row.check}:", "", "~~~text", *end, "~~~"]
    return "\n".join(lines) + "\n"


def main() -> int:
    try:
        machine = find_machine()
    except NoGpuError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    code, rows = run_checks(str(Path(__file__).parent), *sys.argv[1:])
    print(f"\n{render(machine.describe(), rows)}", end="")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
