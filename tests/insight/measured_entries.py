"""Entry files that are measured and predicted: small, and with what PyTorch treats in ways of its own."""

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
"""

MLP = """
def model_provider():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def input_provider(batch_size=4):
    return torch.randn(batch_size, 8), torch.randint(4, (batch_size,))

def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step
"""

CNN = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) + x)

def model_provider():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), Block(), nn.MaxPool2d(2), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(8, 4),
    )

def input_provider(batch_size=4):
    return torch.randn(batch_size, 3, 16, 16), torch.randint(4, (batch_size,))

def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step
"""

TRANSFORMER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.out = nn.Linear(16, 20)

    def forward(self, x):
        return self.out(self.encoder(self.words(x) + self.places(torch.arange(x.shape[1]))))

def model_provider():
    return Model()

def input_provider(batch_size=4):
    return torch.randint(20, (batch_size, 8)), torch.randint(20, (batch_size, 8))

def iteration_provider(model):
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
"""

LSTM = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8), nn.Linear(12, 5)
        self.lstm = nn.LSTM(8, 12, num_layers=2, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.out(self.lstm(self.words(x))[0])

def model_provider():
    return Tagger()

def input_provider(batch_size=4):
    return torch.randint(20, (batch_size, 6)), torch.randint(5, (batch_size, 6))

def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        return loss.item()

    return step
"""

GAN = """
class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.ConvTranspose2d(4, 3, 4), nn.BatchNorm2d(3), nn.Tanh())
        self.critic = nn.Sequential(nn.Conv2d(3, 4, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(4, 1))

def model_provider():
    return Gan()

def input_provider(batch_size=4):
    return (torch.randn(batch_size, 3, 4, 4),)

def iteration_provider(model):
    making, judging = (torch.optim.Adam(m.parameters()) for m in (model.generator, model.critic))
    loss = nn.BCEWithLogitsLoss()

    def step(real):
        judging.zero_grad()
        fake = model.generator(torch.randn(len(real), 4, 1, 1))
        said = model.critic(real)
        (loss(said, torch.ones_like(said)) + loss(model.critic(fake.detach()), torch.zeros_like(said))).backward()
        judging.step()
        making.zero_grad()
        said = model.critic(fake)
        loss(said, torch.ones_like(said)).backward()
        making.step()

    return step
"""

CHECKPOINTED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.inner(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

def model_provider():
    return Model()

def input_provider(batch_size=4):
    return (torch.randn(batch_size, 8),)

def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step(x):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step
"""

ACCUMULATED = """
def model_provider():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

def input_provider(batch_size=4):
    return (torch.randn(batch_size, 8),)

def iteration_provider(model):
    optimizer, calls = torch.optim.Adam(model.parameters()), 0

    def step(x):
        nonlocal calls
        (model(x).sum() / 3).backward()
        calls += 1
        if calls % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return step
"""

ENTRIES = {
    "mlp": MLP, "cnn": CNN, "transformer": TRANSFORMER, "lstm": LSTM, "gan": GAN, "checkpointed": CHECKPOINTED,
    "accumulated": ACCUMULATED,
}  # fmt: skip
