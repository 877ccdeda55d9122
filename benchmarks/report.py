"""Report of a big run: how long it takes to write, and how fast it opens.

    python -m benchmarks.report [--ranks 1000] [--lines 150000] [--events 10000] [--rounds 3]

The record of a run of 8 ranks with a hundredth of the lines and events, and of the big one, are
made; `report` writes the page of each, and Chromium, without a window, opens it from its file. The
last column is the big one's time or size over the small one's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.big_record import write_big_record
from benchmarks.timing import timed
from tests.lab.browser import open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SMALL_RANKS, SMALL_SHARE = 8, 100
NEXT_FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=150_000)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name, open_browser() as browser:
        folder = Path(name)
        small, big = folder / "small", folder / "big"
        share = SMALL_SHARE
        write_big_record(small, SMALL_RANKS, options.lines // share, options.events // share)
        write_big_record(big, options.ranks, options.lines, options.events)
        found = [measure(browser, record, options.rounds) for record in (small, big)]
    print(f"{'':28}{'small':>10}{'big':>10}{'ratio':>8}")
    for title in found[0]:
        before, after = found[0][title], found[1][title]
        print(f"{title:28}{before:10.2f}{after:10.2f}{after / before:8.1f}")


def measure(browser: Browser, record: Path, rounds: int) -> dict[str, float]:
    """Return the figures of one record."""
    file = record / "report.html"
    argv = [sys.executable, "-m", "runner", "report", str(record), "--out", str(file)]
    seconds, _ = timed(argv, record)
    opened = [opens_in(browser, file) for _ in range(rounds)]
    size = sum(path.stat().st_size for path in record.rglob("*") if path != file)
    return {
        "record, MB": size / 1e6,
        "page, MB": file.stat().st_size / 1e6,
        "report, s": seconds,
        "opens, s": statistics.median(opened),
    }


def opens_in(browser: Browser, file: Path) -> float:
    """Return how many seconds a page takes to be drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    page.evaluate(NEXT_FRAME)
    opened: float = page.evaluate("performance.now() / 1000")
    page.close()
    return opened


if __name__ == "__main__":
    main()
