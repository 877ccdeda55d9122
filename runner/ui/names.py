"""Many names as one: `gpu[1-7]`."""

from __future__ import annotations

from collections.abc import Iterable


def fold_names(names: Iterable[str]) -> str:
    """Return names in the notation of ClusterShell, which the YAML takes too."""
    unique = list(dict.fromkeys(names))
    if len(unique) == 1:
        return unique[0]
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(unique))
