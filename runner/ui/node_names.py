"""Node names folded into ranges: `gpu[1-7]`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

TIMES_SIGN = "\N{MULTIPLICATION SIGN}"


def fold_names(names: Iterable[str]) -> str:
    """Return names in ClusterShell's notation, which the YAML accepts, too.

    Text that is not a node's name, but has a meaning in that notation, is left as it is.
    """
    unique = list(dict.fromkeys(names))
    if len(unique) == 1 or not all(re.fullmatch(r"[\w.-]+", name) for name in unique):
        return ", ".join(unique)
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(unique))


@functools.lru_cache(maxsize=512)
def fold_names_cached(names: tuple[str, ...]) -> str:
    """Return the cached result of `fold_names`, for frequent calls."""
    return fold_names(names)
