"""A rank that ends well when SIGUSR1 asks it to, as one that saves a checkpoint does."""

import os
import signal
import sys
import time

heard: "list[int]" = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
print("role", os.environ["ROLE_NAME"], flush=True)
print("up", flush=True)
end = time.monotonic() + 600
while not heard and time.monotonic() < end:
    time.sleep(0.02)
print("rank", os.environ["RANK"], "heard SIGUSR1" if heard else "heard nothing", flush=True)
sys.exit(0)
