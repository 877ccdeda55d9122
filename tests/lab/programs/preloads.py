"""A module that does at its import what its name says, for `task.preload`; each name is a link to it."""

import os
import socket
import threading
import time

if __name__.endswith("threaded"):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
elif __name__.endswith("connected"):
    CONNECTION = socket.socketpair()
elif __name__.endswith("raising"):
    raise RuntimeError("no such card")
elif __name__.endswith("ending"):
    os._exit(1)
