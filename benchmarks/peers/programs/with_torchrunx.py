"""Launch by torchrunx: `with_torchrunx.py HOST,… WORDS OF rank.py`; prints what all ranks print."""

from __future__ import annotations

import logging
import sys

import rank  # it lies beside this file once both were copied
import torchrunx

if __name__ == "__main__":
    hosts, *words = sys.argv[1:]
    launcher = torchrunx.Launcher(hostnames=hosts.split(","), workers_per_host=1, backend=None)
    launcher.set_logging_handlers(lambda: [logging.StreamHandler(sys.stdout)])
    launcher.run(rank.main, *words)
