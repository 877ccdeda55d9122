"""The shipped data match their descriptions; no torch needed."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import runner

TASKS = Path(runner.__file__).parent / "tasks"
EXAMPLES = Path(__file__).parents[3] / "examples"


def test_bytes_are_those_of_the_description() -> None:
    """Each names the sha256 of the file and of the text in it; whoever makes it gets the same."""
    for folder, name in ((TASKS, "digits"), (EXAMPLES, "as_you_like_it")):
        description = (folder / f"{name}.md").read_text()
        (packed,) = folder.glob(f"{name}.*.gz")
        data = packed.read_bytes()
        assert f"{hashlib.sha256(data).hexdigest()}  {packed.name}\n" in description
        unpacked = hashlib.sha256(gzip.decompress(data)).hexdigest()
        assert f"{unpacked}  {packed.name.removesuffix('.gz')}\n" in description
        assert data[4:8] == bytes(4), "it holds the time of its making"
