"""``roller init`` on models as people write them: ``roller profile`` takes what it wrote at the first try."""

import pytest

from roller.insight.step_profile.profile_json import load_profile

pytest.importorskip("torch")

#: Name of a file -> its text, the words behind it, the networks' parameters.
MODELS = {
    "resnet": (
        """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)) + x)

class SmallResNet(nn.Module):
    def __init__(self, classes=10, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3)
        self.body = nn.Sequential(Block(width), Block(width))
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))

if __name__ == "__main__":
    SmallResNet()(torch.randn(1, 3, 8, 8)).sum().backward()
""",
        ["--input", "3x32x32"], 3 * 49 * 16 + 16 + 2 * (9 * 256 + 32) + 170,
    ),
    "transformer": (
        """
from dataclasses import dataclass
import torch.nn as nn

@dataclass
class Config:
    words: int = 1000
    width: int = 64

class Decoder(nn.Module):
    def __init__(self, config: Config = Config()):
        super().__init__()
        self.embed = nn.Embedding(config.words, config.width)
        layer = nn.TransformerEncoderLayer(config.width, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(config.width, config.words)

    def forward(self, tokens, targets=None):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]).to(tokens.device)
        logits = self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))
        loss = None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss
""",
        ["--input", "32:int64"],
        64_000 + 65_000 + 2 * (3 * 64 * 65 + 64 * 65 + 128 * 65 + 64 * 129 + 4 * 64),
    ),
    "lstm": (
        """
import torch

class Tagger(torch.nn.Module):
    def __init__(self, words, tags, hidden=32):
        super().__init__()
        self.embed = torch.nn.Embedding(words, 16)
        self.lstm = torch.nn.LSTM(16, hidden, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(2 * hidden, tags)

    def forward(self, sentence, state=None):
        hidden, state = self.lstm(self.embed(sentence), state)
        return {"logits": self.out(hidden), "state": state}
""",
        ["--input", "20:int64", "--arguments", "100, tags=5"], 1600 + 2 * 4 * 32 * (16 + 32 + 2) + 65 * 5,
    ),
    "gan": (
        """
from torch import nn

class Generator(nn.Module):
    def __init__(self, latent=64):
        super().__init__()
        self.main = nn.Sequential(nn.ConvTranspose2d(latent, 32, 4), nn.ReLU(True), nn.ConvTranspose2d(32, 3, 4, 2, 1))

    def forward(self, input):
        return self.main(input)

class Discriminator(nn.Module):
    def forward(self, input):
        return input.mean()
""",
        ["--class", "Generator", "--input", "64x1x1"], 64 * 32 * 16 + 32 + 32 * 3 * 16 + 3,
    ),
    "two_towers": (
        """
from torch import Tensor, nn

class TwoTowers(nn.Module):
    def __init__(self, users: int, items: int, *, width: int = 8):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Linear(items, width)

    def forward(self, user: Tensor, item: Tensor, /) -> Tensor:
        return (self.users(user) * self.items(item)).sum(-1)
""",
        ["--input", ":int64", "--input", "7", "--arguments", "users=50, items=7, width=4"], 50 * 4 + 7 * 4 + 4,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_providers_of_a_model_are_profiled_at_the_first_try(name, cli, tmp_path, monkeypatch):
    text, words, parameters = MODELS[name]
    monkeypatch.chdir(tmp_path)
    file = f"{name}_of_init"  # no other test loads modules of these names into its process
    (tmp_path / f"{file}.py").write_text(text)
    code, out, err = cli("init", f"{file}.py", *words)
    assert code == 0, err
    assert out.startswith(f"{file}_entry.py: a step of 16 samples runs")
    code, out, err = cli("profile", f"{file}_entry.py", "--device", "h100", "--batch", "8", "--out", "profile.json")
    assert code == 0, err
    found = load_profile("profile.json")
    assert (found.batch, found.memory_parts["parameter"]) == (8, 4 * parameters)
