import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--sizes", type=int, nargs="+", default=[8])
parser.add_argument("--bias", action="store_true")
parser.add_argument("--checkpoint")
args = parser.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
dist.init_process_group("nccl" if gpu else "gloo")
torch.manual_seed(dist.get_rank())  # each rank has samples of its own
inputs = torch.rand(64, 4, device=device)
targets = inputs.sum(1, keepdim=True)

sizes = [4, *args.sizes, 1]
layers = [torch.nn.Linear(*pair, bias=args.bias) for pair in zip(sizes, sizes[1:])]
model = torch.nn.Sequential(*layers).to(device)
epoch = 0
found = [None]
if dist.get_rank() == 0 and args.checkpoint and os.path.exists(args.checkpoint):
    found = [torch.load(args.checkpoint, "cpu")]
dist.broadcast_object_list(found, device=device)  # only rank 0's host has the file
if state := found[0]:
    epoch = state["epoch"]
    model.load_state_dict(state["model"])
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), args.lr)

while epoch < args.epochs:
    loss = mse_loss(parallel(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    epoch += 1
    if dist.get_rank() == 0:
        print(f"epoch {epoch}/{args.epochs} of {dist.get_world_size()} ranks, loss {loss:.4f}")
        if args.checkpoint:
            torch.save({"epoch": epoch, "model": model.state_dict()}, args.checkpoint)
dist.destroy_process_group()
time.sleep(0.2)  # gloo's threads need the interpreter to let go (pytorch/pytorch#179291)
