"""The page of faults: made from the list that is tried on the lab."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden.test_failures import cell
from tests.lab.causing import FAULT_DIR
from tests.lab.fault_forms import Fault
from tests.lab.faults import FAULTS
from tests.lab.launching import ROOT

PAGE = ROOT / "docs" / "faults.md"
HEAD = """\
# Faults that are tried

Each of them befalls node3 of four real hosts in `tests/lab/test_faults.py`; this page is made of
that list by `pytest tests/golden/test_faults_page.py --update-golden`. What stands in the second
column has to be in the last 25 lines that a person sees, and the command has to end with that code,
within that many seconds on a machine whose two cores are all hosts'. After it nothing of the run is
left on any host.

| what happens | what is said, among others | exit code | within |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(
        f"| {cell(fault.name)}{' (`check`)' if fault.args[0] == 'check' else ''} "
        f"| {cell(said(fault))} | {fault.code} | {fault.timeout_s:g} s |\n"
        for fault in FAULTS
    )


def said(fault: Fault) -> str:
    """What has to be there, without what only the lab has."""
    texts = (
        re.sub(rf"{FAULT_DIR}\b", "/data", text).strip(" :(,") for text in fault.expected_output
    )
    return " … ".join(text for text in texts if text not in ("node3", "first failure"))


def test_the_page_is_the_list(request: pytest.FixtureRequest) -> None:
    """Read the diff after --update-golden."""
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_there_are_enough_and_each_is_one_of_its_own() -> None:
    """At least 25, with names that differ, and each says something."""
    assert len(FAULTS) >= 25
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(any(text.strip() for text in fault.expected_output) for fault in FAULTS)


def test_it_is_linked() -> None:
    """From where people look."""
    linking = [Path("docs/troubleshooting.md"), Path("docs/failures.md")]
    assert any("faults.md" in (ROOT / path).read_text() for path in linking)
