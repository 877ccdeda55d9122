"""The page on rendezvous: its commands are those of a plan, its table is what is tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from runner.config.compose import Composer
from runner.control.assumed_facts import assumed_facts
from runner.core import shell
from runner.core.model.plan import Plan
from runner.core.planning.build_plan import build_plan
from tests.golden.test_failures import cell
from tests.lab.launching import ROOT
from tests.lab.ways import ENDINGS, RENDEZVOUS_CASES, RendezvousCase

PAGE = ROOT / "docs" / "rendezvous.md"
HEAD = """\
## How each ends

Tried on real hosts with real torchrun, two ranks each, by `tests/lab/test_rendezvous.py`; this
table is made of its list by `pytest tests/golden/test_rendezvous_page.py --update-golden`. After
each, nothing of the run is left on any host.

"""
CLUSTER = """\
defaults: [base]
gpus_per_node: 8
nodes: {gpu1: {host: 10.0.0.1}, gpu2: {host: 10.0.0.2}}
"""
Compose = Callable[[Mapping[str, str]], Composer]


def table() -> str:
    """How each way ends."""
    heads = ["way", *(ending.name for ending in ENDINGS)]
    fates = [f"{ending.state}, exit {ending.code}" for ending in ENDINGS]
    rows = [heads, ["---"] * len(heads), *([_typed(way), *fates] for way in RENDEZVOUS_CASES)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _typed(way: RendezvousCase) -> str:
    words = " ".join(way.overrides).format(etcd="node4:2379")
    return f"`{cell(words)}` on {' and '.join(way.nodes)}"


def test_the_table_is_the_list(request: pytest.FixtureRequest) -> None:
    """Read the diff after --update-golden."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(text + HEAD + table(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text + HEAD + table()


EXAMPLES = re.findall(
    r"^```yaml\n(.*?)^```\n\n```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("settings", "commands"), EXAMPLES)
def test_the_commands_are_those_of_a_plan(
    settings: str, commands: str, composer_of: Compose
) -> None:
    """With that file in conf/rendezvous; somebody else's etcd is started by somebody else."""
    composer = composer_of(
        {"conf/rendezvous/mine.yaml": settings, "conf/cluster/two.yaml": CLUSTER}
    )
    alone = ["task.nnodes=1"] if "standalone" in settings else []
    words = ["cluster=two", "rendezvous=mine", "task.script=train.py", "cluster.project=."]
    composed = composer.compose([*words, "run_id=digits", *alone])
    spec, facts, _ = assumed_facts(composed.spec)
    typed = "".join(line + "\n" for line in _lines(build_plan(spec, facts)))
    assert typed == re.sub(r"^etcd1\$.*\n", "", commands, flags=re.MULTILINE)


def _lines(plan: Plan) -> list[str]:
    lines = []
    for share in plan.nodes:
        service = share.order.sidecar
        if service is not None and service.node == share.node:
            lines.append(f"{share.node}$ {shell.line(service.argv)}")
        torchrun = shell.line(("torchrun", *share.command[3:]))
        lines.append(f"{share.node}$ {torchrun}")
    return lines


def test_every_way_has_an_example() -> None:
    """And the page is linked."""
    backends = {re.search(r"^backend: (.*)$", text, re.MULTILINE)[1] for text, _ in EXAMPLES}  # type: ignore[index]
    assert backends == {"static", "c10d", "etcd", "etcd-v2", "standalone"}
    assert "docs/rendezvous.md" in (ROOT / "README.md").read_text()
