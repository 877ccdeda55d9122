"""The shipped data match their descriptions; no torch needed."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from pathlib import Path

import runner

TASKS = Path(runner.__file__).parent / "tasks"
DIGITS = TASKS / "digits.csv.gz"


def test_every_row_is_an_image_and_its_label() -> None:
    """There are 1,797 rows: 64 pixels from 0 to 16, then a digit, as often as UCI counts it."""
    text = gzip.decompress(DIGITS.read_bytes()).decode()
    rows = [[int(value) for value in line.split(",")] for line in text.splitlines()]

    assert len(rows) == 1797
    assert {len(row) for row in rows} == {65}
    assert {pixel for row in rows for pixel in row[:64]} == set(range(17))
    labels = Counter(row[64] for row in rows)
    assert [labels[digit] for digit in range(10)] == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]


def test_bytes_are_those_of_the_description() -> None:
    """Each names the sha256 of the file and of the text in it; whoever makes it gets the same."""
    for name in ("digits", "as_you_like_it"):
        description = (TASKS / f"{name}.md").read_text()
        (packed,) = TASKS.glob(f"{name}.*.gz")
        data = packed.read_bytes()
        assert f"{hashlib.sha256(data).hexdigest()}  {packed.name}\n" in description
        unpacked = hashlib.sha256(gzip.decompress(data)).hexdigest()
        assert f"{unpacked}  {packed.name.removesuffix('.gz')}\n" in description
        assert data[4:8] == bytes(4), "it holds the time of its making"
