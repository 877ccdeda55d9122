"""Many names as one: `gpu[1-7]`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

TIMES_SIGN = "\N{MULTIPLICATION SIGN}"


def fold_names(names: Iterable[str]) -> str:
    """Return names in the notation of ClusterShell, which the YAML takes too.

    What is no name of a node or a key, but means something in that notation, is left as it is.
    """
    unique = list(dict.fromkeys(names))
    if len(unique) == 1 or not all(re.fullmatch(r"[\w.-]+", name) for name in unique):
        return ", ".join(unique)
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(unique))


@functools.lru_cache(maxsize=512)
def fold_names_cached(names: tuple[str, ...]) -> str:
    """Return what `fold_names` does, for what is asked again and again."""
    return fold_names(names)
