"""A rank without torch that counts steps into a shared folder, and goes on where it stopped.

FOLDER STEPS SECONDS [fail=RANK@STEP]: the last makes that rank exit 7 there, the first time.
"""

import os
import sys
import time

folder, steps, pause, *more = sys.argv[1:]
rank = os.environ["RANK"]
path = os.path.join(folder, "rank_" + rank)
wrong = dict(word.split("=") for word in more).get("fail", "")
print("up", flush=True)
while True:
    done = 0
    if os.path.exists(path):
        with open(path) as file:
            done = len(file.readlines())
    if done >= int(steps):
        break
    time.sleep(float(pause))
    with open(path, "a") as file:
        print(done, os.uname().nodename, os.environ["MASTER_ADDR"], file=file)
    once = os.path.join(folder, "failed")
    if wrong == f"{rank}@{done}" and not os.path.exists(once):
        open(once, "w").close()
        sys.exit(7)
    if os.path.exists(os.path.join(folder, "end")):
        break
print("done", flush=True)
