"""Contact keys: what reaches the hosts of a run, for verbs that need nothing of its task."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from runner.config.words import chosen_cluster, key_of
from runner.core.spec import Spec, keys_of, written_defaults

CONTACT_KEYS = (
    "cluster.scheduler",
    "cluster.transport",
    "cluster.nodes",
    "cluster.only",
    "cluster.exclude",
    "cluster.ssh",
    "cluster.host_python",
    "cluster.workdir",
    "run_id",
    "run_dir",
    "ui",
    "console_ranks",
    "grace_s",
    "lost_s",
    "disconnect_s",
    "pull_outputs",
    "progress.pattern",
)
"""What reaches the hosts of a run, and says how it is stopped and shown."""

IF_RESOLVED = ("cluster.setup", "cluster.project")
"""They may bring the interpreter; without their variables, it may be there all the same."""

NODE_ENV = re.compile(r"cluster\.nodes\..+\.env(\..*)?")


def is_among(key: str, keys: Collection[str]) -> bool:
    """Return whether a key is one of these, leads to one or stands below one."""
    leads_to_one = any(f"{wanted}.".startswith(f"{key}.") for wanted in keys)
    is_below_one = any(f"{key}.".startswith(f"{wanted}.") for wanted in keys)
    return (leads_to_one or is_below_one) and not NODE_ENV.fullmatch(key)


def ignored_words(typed: Sequence[str], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that set neither what reaches hosts nor these keys; and what may be set."""
    taken = sorted({"cluster", *CONTACT_KEYS, *IF_RESOLVED, "cluster.python", "rerun", *keys})
    below = [key for key in taken if key != "cluster"]
    sections = keys_of(Spec)
    ignored = []
    for word in typed:
        key = key_of(word)
        is_known = re.split(r"[./]", key)[0] in sections
        if is_known and key != "cluster" and not is_among(key, below):
            ignored.append(word)
    return ignored, taken


def contact_words(typed: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return those of a launch's words by which a verb reaches the same hosts.

    Task and environment of the launch are not among them.
    """
    own = {*written_defaults(Spec), "hydra"}
    keys = {*CONTACT_KEYS, *IF_RESOLVED, "cluster.python", "rerun"} - {"run_id"}
    kept = []
    for word in typed:
        key = key_of(word)
        is_known = re.split(r"[./]", key)[0] in own
        if key != "cluster" and (is_among(key, keys) or not is_known):
            kept.append(word)
    chosen = chosen_cluster(typed)
    several = f"[{cluster.replace('+', ',')}]" if "+" in cluster else cluster
    repeats_record = any(key_of(word) == "rerun" for word in kept)
    flags = () if repeats_record and not chosen else ("--cluster", chosen or several)
    return (*flags, *kept)
