"""Command that repeats a run without the hosts that it lost, by its record."""

from __future__ import annotations

from runner.control.record.file_names import CONFIG_FILE
from runner.control.record.run_store import RunStore
from runner.core.model.plan import Plan
from runner.core.outcome.verdict import LOST, Verdict
from runner.core.shell import line, this_program


def rerun_without_lost(store: RunStore, plan: Plan, verdict: Verdict) -> str:
    """Return the command that repeats a run without the hosts that it lost, "" for none.

    There is none where the recorded configuration wants those hosts, or so many nodes.
    """
    lost = (*verdict.unverified, *verdict.unverified_before)
    left = {node.node for node in plan.nodes}.difference(lost)
    if verdict.state != LOST or not (lost and left):
        return ""
    import yaml  # noqa: PLC0415 (few runs lose a host)

    try:
        config = yaml.safe_load((store.folder / CONFIG_FILE).read_text(encoding="utf-8"))
        cluster, wanted = config["cluster"], config["task"]["nnodes"]
        excluded, scheduler = cluster["exclude"] or [], cluster["scheduler"]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return ""
    if wanted is not None or scheduler != "direct" or not isinstance(excluded, list):
        return ""
    names = dict.fromkeys([*map(str, excluded), *lost])
    words = [f"rerun={plan.run_id}", f"cluster.exclude=[{','.join(names)}]"]
    words += ["cluster.master=null"] if cluster["master"] in lost else []
    return f"{this_program()} {line(words)}"
