"""Command on every host by Fabric's group: `with_fabric.py HOST,… COMMAND`."""

from __future__ import annotations

import sys

from fabric import ThreadingGroup

if __name__ == "__main__":
    hosts, command = sys.argv[1:]
    ThreadingGroup(*hosts.split(",")).run(command)
