"""Page of runs: one HTML file that needs nothing else."""

from runner.ui.page.page import render_page

__all__ = ["render_page"]
