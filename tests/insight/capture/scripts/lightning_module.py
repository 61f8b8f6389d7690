"""Lightning: a module, a data module, accumulation, checkpoints and a logger, as its introduction has them."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(80, 20), torch.randint(4, (80,))), batch_size=10, num_workers=2)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(20, 20), torch.randint(4, (20,))), batch_size=10)


class Classifier(L.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=1.0, default_root_dir="lightning")
    trainer.fit(Classifier(), datamodule=Data())
