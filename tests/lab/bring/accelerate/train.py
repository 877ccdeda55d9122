import argparse
import glob

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--folder", default="checkpoints")
args = parser.parse_args()

accelerator = Accelerator()
set_seed(0)
inputs = torch.rand(256, 4)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.02)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = [int(path.rpartition("_")[2]) for path in glob.glob(f"{args.folder}/epoch_*")]
done = max(saved, default=0)
if done:
    accelerator.load_state(f"{args.folder}/epoch_{done}")
for epoch in range(done + 1, args.epochs + 1):
    for inputs, targets in loader:
        loss = mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    loss = accelerator.reduce(loss.detach(), "mean").item()
    if accelerator.is_main_process:
        print(f"epoch {epoch} of {accelerator.num_processes} ranks, loss {loss:.4f}")
    accelerator.save_state(f"{args.folder}/epoch_{epoch}")
accelerator.end_training()
