import logging
import os

import hydra
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(dist.get_rank())  # each rank has samples of its own
    inputs = torch.rand(64, 4, device=device)
    targets = inputs.sum(1, keepdim=True)

    width = config.model.width
    layers = torch.nn.Linear(4, width), torch.nn.Linear(width, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), config.lr)
    for step in range(config.steps):
        loss = mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1} of {dist.get_world_size()} ranks, loss {loss:.4f}")
    log.info("width %d, lr %g", width, config.lr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
