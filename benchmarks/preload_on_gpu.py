"""Preload on a GPU: from the command to the last rank's first step, against torchrun by hand.

    python -m benchmarks.preload_on_gpu [--ranks 1 8] [--pairs 3]

On this machine, turn by turn: `python -m runner cluster=local`, the same with `task.preload`, and
`torchrun`. All ranks use the first GPU, and the CPU where there is none. Prints a row per number
of ranks: the medians in seconds, and the ratios of the pairs to torchrun by hand.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.launch import first_lines
from benchmarks.timing import ratio

FIRST_STEP = """\
import time, torch
device = "cuda:0" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4, device=device)).sum().backward()
optimizer.step()
print("here", model.weight.sum().item() and "", flush=True)
time.sleep(0.5)
"""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    print("ranks  runner s  preload s  torchrun s  without, ratio       with, ratio")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for count in options.ranks:
            print(row(Path(folder), count, options.pairs), flush=True)


def row(folder: Path, ranks: int, pairs: int) -> str:
    """Measure one number of ranks, after a launch of each way that is not counted."""
    script = folder / "first_step.py"
    script.write_text(FIRST_STEP)
    runner = [
        *(sys.executable, "-m", "runner", "cluster=local", f"cluster.workdir={folder / 'hosts'}"),
        *(f"cluster.nproc_per_node={ranks}", f"task.script={script}", "task.preload=false"),
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ways = (
        runner,
        [*runner[:-1], "task.preload=true"],
        [*torchrun, f"--nproc_per_node={ranks}", str(script)],
    )
    first = functools.partial(first_lines, ranks)
    for command in ways:
        first(command, folder)
    times = [[first(command, folder) for command in ways] for _ in range(pairs)]
    without, preloaded, by_hand = zip(*times, strict=True)
    middle = [statistics.median(way) for way in (without, preloaded, by_hand)]
    return (
        f"{ranks:5}  {middle[0]:8.2f}  {middle[1]:9.2f}  {middle[2]:10.2f}  "
        f"{ratio(without, by_hand)}  {ratio(preloaded, by_hand)}"
    )


if __name__ == "__main__":
    main()
