"""Turn what a terminal shows into the picture of README.

In tmux, 110 columns wide: run what is to be shown, then
`tmux capture-pane -pe | python docs/picture.py > docs/run.svg`.
"""

import sys
from io import StringIO

from rich.console import Console
from rich.text import Text

lines = sys.stdin.read().rstrip().split("\n")
console = Console(record=True, width=110, file=StringIO(), force_terminal=True)
for line in lines:
    console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False)
print(console.export_svg(title="runner"))
