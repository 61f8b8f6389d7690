"""A plain loop: arguments, a seed, checkpoints and a log; the GPU where there is one."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width * 8 * 8, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(x.flatten(1))


def evaluate(model, loader, device):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", default="runs/last")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(10, (64,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    model = Net(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    os.makedirs(args.out, exist_ok=True)
    log = open(os.path.join(args.out, "log.txt"), "w")
    for epoch in range(args.epochs):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item(), file=log)
        print(f"epoch {epoch}: {evaluate(model, loader, device):.1%}")
        torch.save({"model": model.state_dict()}, os.path.join(args.out, "last.pt"))


if __name__ == "__main__":
    main()
