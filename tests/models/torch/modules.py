"""Small modules of PyTorch, and everything that may happen to their weights between two calls."""

from __future__ import annotations

import copy
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")

WIDTH = 8


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        return torch.relu(self.norm(self.line(x)))


class Image(torch.nn.Module):
    """A convolution whose normalisation an exporter would fold into its weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()

    def forward(self, x):
        return self.norm(self.conv(x[None, None])).mean((0, 1))


class Tied(torch.nn.Module):
    """One weight in two places, one of them transposed, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) @ self.first.weight + self.shift


class Own(torch.nn.Module):
    """Parameters without a layer around them."""

    def __init__(self):
        super().__init__()
        self.scale, self.weight = torch.nn.Parameter(torch.randn(WIDTH)), torch.nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        return (x * self.scale) @ self.weight.T - self.weight.mean()


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Line() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


KINDS = (Line, Image, Tied, Own, Nested)


def make(kind, rng):
    """Return a module whose weights no other one has."""
    torch.manual_seed(rng.getrandbits(32))
    module = kind().eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight))
    return module


def _weight(module, rng):
    return rng.choice(list(module.parameters()))


def _step(module, make_optimizer):
    optimizer = make_optimizer(module.parameters())
    for weight in module.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()


def no_grad_write(module, rng):
    with torch.no_grad():
        _weight(module, rng).mul_(1.5)


def element(module, rng):
    with torch.no_grad():
        _weight(module, rng).view(-1)[-1] += 3


def load(module, rng):
    module.load_state_dict(make(type(module), rng).state_dict())


def assign(module, rng):
    module.load_state_dict(make(type(module), rng).state_dict(), assign=True)


def descend(module, rng):
    _step(module, lambda weights: torch.optim.SGD(weights, lr=0.3))


def adam(module, rng):
    _step(module, lambda weights: torch.optim.Adam(weights, lr=0.3))


def swap(module, rng):
    """Give a weight other memory, as adapters that are merged in do."""
    weight = _weight(module, rng)
    weight.data = weight.data + torch.randn_like(weight)


def swap_twice(module, rng):
    """Free memory and have it given again: the third tensor may lie where the first one did."""
    weight = _weight(module, rng)
    for _ in range(2):
        weight.data = torch.randn(weight.shape)


def transpose(module, rng):
    """Change strides but neither memory nor shape."""
    for weight in module.parameters():
        if weight.shape == (WIDTH, WIDTH):
            weight.data = weight.data.t()


def replace(module, rng):
    """Put another parameter where one was."""
    for owner in module.modules():
        for name, weight in list(owner._parameters.items()):
            if weight is not None:
                setattr(owner, name, torch.nn.Parameter(torch.randn(weight.shape)))


#: What PyTorch counts, or is seen by another tensor or other memory.
COUNTED = (no_grad_write, element, load, assign, descend, adam, swap, swap_twice, transpose, replace)


def data_write(module, rng):
    _weight(module, rng).data.mul_(-1.5)


def data_element(module, rng):
    _weight(module, rng).data.view(-1)[rng.randrange(4)] += 3


def through_numpy(module, rng):
    _weight(module, rng).detach().numpy()[...] += 1


def fused(module, rng):
    _step(module, lambda weights: torch.optim.SGD(weights, lr=0.3, fused=True))


#: Writes that leave no trace but the values.
UNCOUNTED = (data_write, data_element, through_numpy, fused)


def check(fast, module, x):
    """Compare one call with PyTorch; a warning would mean that PyTorch has run."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found, expected = fast(x).numpy(), module(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def live(kind, rng, compiled, changes, calls=6):
    """Call two modules of a class in turns, change them in between, copy one; check every call."""
    modules = [make(kind, rng) for _ in range(2)]
    pairs = [(compiled(m), m) for m in modules]
    for _ in range(calls):
        fast, module = rng.choice(pairs)
        check(fast, module, torch.randn(4, WIDTH))
        if rng.random() < 0.7:
            rng.choice(changes)(module, rng)
        if rng.random() < 0.2:
            copied = copy.deepcopy(module)
            pairs[rng.randrange(2)] = (compiled(copied), copied)
    for fast, module in pairs:
        check(fast, module, torch.randn(4, WIDTH))


def seeded(seed):
    torch.manual_seed(seed)
    return random.Random(seed)
