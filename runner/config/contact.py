"""Contact keys: what reaches the hosts of a run, for verbs that need nothing of its task."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from runner.config.words import chosen_cluster, key_of
from runner.core.spec import Spec, keys_of

CONTACT_KEYS = (
    "cluster.scheduler",
    "cluster.transport",
    "cluster.nodes",
    "cluster.only",
    "cluster.exclude",
    "cluster.ssh",
    "cluster.python",
    "cluster.host_python",
    "cluster.setup",
    "cluster.project",
    "cluster.workdir",
    "run_id",
    "run_dir",
    "rerun",
    "ui",
    "console_ranks",
    "grace_s",
    "lost_s",
    "disconnect_s",
    "pull_outputs",
    "progress.pattern",
)
"""What reaches the hosts of a run, and says how it is stopped and shown."""

NODE_ENV = re.compile(r"cluster\.nodes\..+\.env(\..*)?")


def is_among(key: str, keys: Collection[str]) -> bool:
    """Return whether a key is one of these, leads to one or stands below one."""
    leads_to_one = any(f"{wanted}.".startswith(f"{key}.") for wanted in keys)
    is_below_one = any(f"{key}.".startswith(f"{wanted}.") for wanted in keys)
    return (leads_to_one or is_below_one) and not NODE_ENV.fullmatch(key)


def ignored_words(typed: Sequence[str], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that set neither what reaches hosts nor these keys; and what may be set."""
    taken = sorted({*CONTACT_KEYS, *keys})
    ignored = []
    for word in typed:
        key = key_of(word)
        is_known = re.split(r"[./]", key)[0] in keys_of(Spec)
        if is_known and not is_among(key, taken):
            ignored.append(word)
    return ignored, ["cluster", *taken]


def contact_words(typed: Sequence[str], cluster: str) -> tuple[str, ...]:
    """Return those of a launch's words by which a verb reaches the same hosts.

    Task and environment of the launch are not among them.
    """
    left_out = {*ignored_words(typed, ())[0]}
    left_out |= {word for word in typed if key_of(word) in ("cluster", "run_id")}
    kept = [word for word in typed if word not in left_out]
    chosen = chosen_cluster(typed)
    repeats_record = any(key_of(word) == "rerun" for word in kept)
    flags = () if repeats_record and not chosen else ("--cluster", chosen or cluster)
    return (*flags, *kept)
