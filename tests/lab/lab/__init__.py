"""Several real hosts on one machine, each with its own OpenSSH server: what the lab tests run on.

    with make_lab(n=2) as lab:
        lab["node1"].sh("hostname")
        lab["node2"].unplug()

A host has namespaces of its own for network, PIDs, mounts, IPC and hostname. It shares the
machine's files, except for /home, /tmp, /run, /dev/shm, /var/log and a few of /etc. Root only.
"""

from tests.lab.lab.disk import FreezableDisk, NetworkDisk
from tests.lab.lab.files import LOGIN_USER
from tests.lab.lab.host import Host
from tests.lab.lab.lab import Lab
from tests.lab.lab.make import LabFactory, make_lab
from tests.lab.lab.processes import Process
from tests.lab.lab.programs import LabError, missing, need

__all__ = [
    "LOGIN_USER",
    "FreezableDisk",
    "Host",
    "Lab",
    "LabError",
    "LabFactory",
    "NetworkDisk",
    "Process",
    "make_lab",
    "missing",
    "need",
]
