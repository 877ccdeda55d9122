"""Page of runs: one HTML file that needs nothing else, with timelines and charts.

`page_data` makes the data that the page draws, `render_page` the page around it. The scripts in
`assets/` draw; the charts are uPlot's, in `vendor/`.
"""

from runner.ui.page.data import page_data
from runner.ui.page.render import render_page

__all__ = ["page_data", "render_page"]
