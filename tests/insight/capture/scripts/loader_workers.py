"""A dataset of files' names and augmentation, a loader with worker processes and pinned memory; a scheduler."""

import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

EPOCHS, BATCH = 3, 8


class Images(Dataset):
    def __init__(self, count=40, training=True):
        self.names = [f"{n:05}.png" for n in range(count)]
        self.training = training

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        label = int(self.names[index][:5]) % 7
        image = torch.rand(3, 32, 32)
        if self.training and random.random() < 0.5:
            image = image.flip(-1)
        return {"image": image, "label": label}


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2),
    nn.ReLU(inplace=True),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 7),
)

if __name__ == "__main__":
    training, held_out = random_split(Images(), [32, 8])
    loader = DataLoader(
        training, BATCH, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True, drop_last=True
    )
    model.cuda()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * len(loader))
    best = Path("checkpoints")
    for epoch in range(EPOCHS):
        for number, batch in enumerate(loader):
            images = batch["image"].cuda(non_blocking=True)
            labels = batch["label"].cuda(non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        best.mkdir(exist_ok=True)
        torch.save(model.state_dict(), best / f"epoch{epoch}.pt")
    Path("result.txt").write_text(f"{loss.item():.4f}\n")
