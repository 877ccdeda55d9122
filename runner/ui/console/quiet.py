"""Quiet console: for what goes on behind a page, where nobody reads of every connection."""

from __future__ import annotations

from runner.ui.console.plain import Console


class QuietConsole(Console):
    """A console that shows no message."""

    def message(self, text: str) -> None:
        """Leave it out."""
