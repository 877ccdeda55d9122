"""A rank that trains with workers of a DataLoader, and saves when it is told to end."""

import os
import signal
import threading

import torch

told = threading.Event()
numbers = torch.utils.data.TensorDataset(torch.arange(1 << 20))
loader = torch.utils.data.DataLoader(numbers, num_workers=2)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    for step, _ in enumerate(loader):
        if step == 3:
            print("training", flush=True)
        if told.is_set():
            break
    print(f"rank {os.environ['RANK']} SAVED", flush=True)


if __name__ == "__main__":
    main()
