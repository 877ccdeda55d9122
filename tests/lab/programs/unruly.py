"""A rank that is hard to end, or does something when it gets TERM.

zombies=N  forks  hops  bare  sheds=SECONDS  headless=PATH
saves=SECONDS  helper=PATH (a child that notes there that it got TERM)
"""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
import time


def note(path: str) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)


def save(seconds: float) -> None:
    print("saving", flush=True)
    time.sleep(seconds)
    print("saved", flush=True)
    sys.exit()


def hear(path: str) -> None:
    print("heard", flush=True)
    note(path.replace("RANK", os.environ["RANK"]))
    sys.exit()


def did(name: str, value: str, rank: str) -> bool:
    if name == "zombies":
        for _ in range(int(value)):
            if os.fork() == 0:
                os._exit(0)
    elif name == "forks":  # some hundred a second, each lives a while
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if os.fork() == 0:
                time.sleep(0.2)
                os._exit(0)
            time.sleep(0.002)
    elif name == "hops":  # from process to process and session to session; nobody lives long
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.003)
    elif name == "bare":  # a child that shows no mark
        argv = [sys.executable, rank, "deaf", "sleep=600"]
        subprocess.Popen(argv, env={}, start_new_session=True)
    elif name == "sheds":  # such children without end
        while True:
            subprocess.Popen(["/bin/sleep", value], env={}, start_new_session=True)
    elif name == "headless":  # a child whose first thread ends long before its second
        if os.fork() == 0:
            os.setsid()
            threading.Thread(target=time.sleep, args=(600,)).start()
            with open(f"{value}.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(f"{value}.new", value)
            exit_of_a_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]
            ctypes.CDLL(None).syscall(exit_of_a_thread, 0)
        while not os.path.exists(value):
            time.sleep(0.02)
    else:
        return heeds(name, value, rank)
    return True


def heeds(name: str, value: str, rank: str) -> bool:
    if name == "saves":
        signal.signal(signal.SIGTERM, lambda *_: save(float(value)))
    elif name == "helper":
        argv = [sys.executable, rank, f"hears={value}", "err=ready", "sleep=600"]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE)
        child.stderr and child.stderr.readline()
    elif name == "hears":
        signal.signal(signal.SIGTERM, lambda *_: hear(value))
    else:
        return False
    return True
