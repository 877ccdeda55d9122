"""The choice of a console: live on a terminal, plain everywhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence

from runner.ui.console import plain
from runner.ui.console.live import LiveConsole
from runner.ui.console.plain import Console


def open_console(ui: str, ranks: frozenset[int] | None, nodes: Sequence[str]) -> Console:
    """Return the console that suits standard output and error; `ui` is "auto" or "plain".

    The live one needs both to be the same terminal: a pipe may lead to that terminal as well
    (`| tee`), where its lines and the status area would overwrite each other.
    """
    return Console(ranks) if ui == "plain" or not _supports_live() else LiveConsole(ranks, nodes)


def _supports_live() -> bool:
    if os.environ.get("TERM", "dumb") in ("dumb", "") or not os.isatty(plain.ERR):
        return False
    return os.isatty(plain.OUT) and os.path.samestat(*map(os.fstat, (plain.OUT, plain.ERR)))
