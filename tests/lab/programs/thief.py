"""Takes the second port that a process here holds bound without listening.

The runner keeps the master's ports like that, torch's and then the hub's; SO_REUSEADDR lets
another program listen on them all the same, which is the collision that has to be noticed. Whoever
connects hears nothing, as behind a firewall that lets connections in and nothing through.
"""

import ctypes
import glob
import os
import socket
import time


def main() -> None:
    while True:
        for port in [ports[1] for ports in kept() if len(ports) > 1]:
            with socket.socket(socket.AF_INET6) as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    taken.bind(("::", port))
                    taken.listen()
                except OSError:
                    continue
                print(f"listening on {port}", flush=True)
                time.sleep(120)
                return
        time.sleep(0.002)


def kept() -> "list[list[int]]":
    """For every other process, its bound sockets that neither listen nor are connected.

    Such sockets stand in no /proc/net table, so their owners' descriptors are looked through.
    """
    found = []
    for folder in glob.glob("/proc/[0-9]*/fd"):
        pid = int(folder.split("/")[2])
        try:
            numbers = sorted(int(name) for name in os.listdir(folder))
            links = {number: os.readlink(f"{folder}/{number}") for number in numbers}
        except OSError:
            continue
        if pid != os.getpid():
            sockets = [number for number in numbers if links[number].startswith("socket:")]
            found.append([port for port in (stolen(pid, number) for number in sockets) if port])
    return found


def stolen(pid: int, fd: int) -> int:  # noqa: PLR0911 (each is another reason)
    """The local port of another process's bound TCP socket, 0 when it is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(434, pid, 0)  # pidfd_open
    if pidfd < 0:
        return 0
    copy = libc.syscall(438, pidfd, fd, 0)  # pidfd_getfd
    os.close(pidfd)
    if copy < 0:
        return 0
    try:
        twin = socket.socket(fileno=copy)
    except OSError:  # another descriptor has its number by now
        os.close(copy)
        return 0
    with twin:
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
