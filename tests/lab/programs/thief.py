"""Takes the first port that a process here holds bound, without listening, for torch's store.

The runner keeps the master's port like that; SO_REUSEADDR lets another program listen on it all
the same, which is the collision that has to be noticed.
"""

import ctypes
import glob
import os
import socket
import time


def main() -> None:
    """Look for such a port, listen on it, and stay."""
    while True:
        for port in bound():
            with socket.socket(socket.AF_INET6) as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    taken.bind(("::", port))
                    taken.listen()
                except OSError:
                    continue
                time.sleep(60)
                return
        time.sleep(0.002)


def bound() -> "list[int]":
    """Ports bound by sockets of other processes that neither listen nor are connected.

    Such sockets stand in no /proc/net table, so their owners' descriptors are looked through.
    """
    ports = []
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if not os.readlink(link).startswith("socket:"):
                continue
            pid, fd = int(link.split("/")[2]), int(link.split("/")[4])
            if pid == os.getpid():
                continue
            copy = os.open(f"/proc/{pid}", os.O_RDONLY)
        except OSError:
            continue
        os.close(copy)
        port = stolen(pid, fd)
        if port:
            ports.append(port)
    return ports


def stolen(pid: int, fd: int) -> int:
    """The local port of another process's bound TCP socket, 0 when it is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(434, pid, 0)  # pidfd_open
    if pidfd < 0:
        return 0
    copy = libc.syscall(438, pidfd, fd, 0)  # pidfd_getfd
    os.close(pidfd)
    if copy < 0:
        return 0
    with socket.socket(fileno=copy) as twin:
        try:
            if twin.type != socket.SOCK_STREAM or twin.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                return 0
            listening = twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            try:
                twin.getpeername()
                return 0
            except OSError:
                return 0 if listening else int(twin.getsockname()[1])
        except OSError:
            return 0


if __name__ == "__main__":
    main()
