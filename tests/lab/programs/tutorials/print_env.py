import argparse
import os

import torch

parser = argparse.ArgumentParser()
# torch.distributed.launch says --local-rank since torch 2.0, and said --local_rank before
parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
args = parser.parse_args()

torch.distributed.init_process_group(backend="gloo", init_method="env://")
print(
    "| distributed init (rank {}): env://, local rank {} of {}, world size {}".format(
        torch.distributed.get_rank(),
        args.local_rank,
        os.environ["LOCAL_WORLD_SIZE"],
        torch.distributed.get_world_size(),
    ),
    flush=True,
)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
