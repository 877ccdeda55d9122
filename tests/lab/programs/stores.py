"""Nodes of which the second serves a store, as torch does for MASTER_ADDR=localhost.

apart: nobody else uses it. meets ADDRESS: it is connected to the first node, too. serves ADDRESS:
the third node is a client of it. ADDRESS is that of the node that the other goes to.
"""

import ctypes
import os
import socket
import sys
import threading
import time

PR_SET_NAME = 15
MODE, ADDRESS = sys.argv[1:]
PORT = int(os.environ["MASTER_PORT"])
SAMPLES = os.path.join(os.path.dirname(os.environ["RUNNER_METRICS"]), "samples.jsonl")
accepted: "list[socket.socket]" = []


def serve() -> None:
    """Serve clients in a thread that has the name of torch's."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", PORT))
    listener.listen()

    def accept() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_tcpstore_uv", 0, 0, 0)
        while True:
            accepted.append(listener.accept()[0])

    threading.Thread(target=accept, daemon=True).start()


def connect() -> socket.socket:
    while True:
        try:
            return socket.create_connection((ADDRESS, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)


def sample_count() -> int:
    """The supervisor looks at connections more often than it takes a sample."""
    try:
        with open(SAMPLES, encoding="ascii") as file:
            return file.read().count("\n")
    except OSError:
        return 0


rank = int(os.environ["RANK"])
if rank == 0 and MODE == "meets":
    serve()
    while not accepted:
        time.sleep(0.05)
    accepted[0].recv(1)
elif rank == 2:
    connect().recv(1)
elif rank == 1:
    serve()
    own = socket.create_connection(("127.0.0.1", PORT))
    other = connect() if MODE == "meets" else None
    while MODE == "serves" and len(accepted) < 2:
        time.sleep(0.05)
    begin = sample_count()
    while sample_count() < begin + 4:
        time.sleep(0.05)
