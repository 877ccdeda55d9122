import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=os.environ.get("GROUP_WORLD_SIZE", "1"))
parser.add_argument("--devices", type=int, default=os.environ.get("LOCAL_WORLD_SIZE", "1"))
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--folder", default="checkpoints")
args = parser.parse_args()


class Sum(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        loss, ranks = self.trainer.callback_metrics["loss_epoch"], self.trainer.world_size
        self.print(f"epoch {self.current_epoch + 1} of {ranks} ranks, loss {loss:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.02)


inputs = torch.rand(256, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
lightning.seed_everything(0)
trainer = lightning.Trainer(
    num_nodes=args.nodes,
    devices=args.devices,
    strategy="ddp",
    max_epochs=args.epochs,
    callbacks=ModelCheckpoint(args.folder, save_last=True, enable_version_counter=False),
    logger=False,
    enable_progress_bar=False,
)
last = os.path.join(args.folder, "last.ckpt")
start = last if os.path.exists(last) else None
trainer.fit(Sum(), DataLoader(data, batch_size=16), ckpt_path=start)
