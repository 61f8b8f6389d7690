"""Training steps whose memory others published: models in plain PyTorch by their configurations, and steps as trained.

A case says which release of PyTorch the report used: what a step saves and allocates depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import roller
from roller.insight.traced_step import TracedStep
from roller.insight.tracing import trace_providers
from roller.suite.models.bert import BERT_LARGE, Body

#: The first release that is called one of today: scaled dot-product attention, grouped optimizers, lazy loading.
FIRST_OF_TODAY = (2, 0)


@dataclass(frozen=True)
class Case:
    """A published step.

    Parameters
    ----------
    release
        Of PyTorch, as the report or its date says.
    device
        Of the specification whose rules choose kernels.
    make
        Returns the traced step, of a device and a release.
    assumed
        What the row leaves out, and what is taken.
    is_source
        Whether a specification has the figure itself.
    """

    release: str
    device: str
    make: Callable[[str, str], TracedStep]
    assumed: str = ""
    is_source: bool = False

    @property
    def is_of_today(self) -> bool:
        """Whether the release is one of today's."""
        major, minor = self.release.split(".")[:2]
        return (int(major), int(minor)) >= FIRST_OF_TODAY


class BertClassifier(nn.Module):
    """BERT with a pooled output and two classes."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.body, self.checkpointed = Body(BERT_LARGE), checkpointed
        self.pool, self.dropout, self.head = nn.Linear(1024, 1024), nn.Dropout(0.1), nn.Linear(1024, 2)

    def forward(self, tokens: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        body = self.body
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = body.tokens(tokens) + body.kinds(torch.zeros_like(tokens)) + body.positions(places)
        x = body.dropout(body.norm(x))
        for block in body.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.checkpointed else block(x)
        return functional.cross_entropy(self.head(self.dropout(torch.tanh(self.pool(x[:, 0])))), classes)


def bert_large(
    device: str, release: str, *, batch: int, accumulate: int = 1, amp: str | None = None, checkpointed: bool = False
) -> TracedStep:
    """Return a step of BERT-large on sequences of 512 tokens, as a trainer of 2022 runs it: gradients are kept."""
    inputs = (torch.zeros(batch, 512, dtype=torch.long), torch.zeros(batch, dtype=torch.long))
    return roller.trace(
        lambda: BertClassifier(checkpointed=checkpointed), inputs, optimizer=torch.optim.AdamW, amp=amp, device=device,
        accumulate=accumulate, **of_release(release),
    )  # fmt: skip


def vit_l(
    device: str, release: str, *, mixed: bool = False, dtype: torch.dtype = torch.float32
) -> TracedStep:  # fmt: skip
    """Return a step of ViT-L/16 with ten classes at batch 64 with Adam, as published: gradients live in forward."""
    from torchvision.models import vit_l_16

    def steps(model: nn.Module) -> Callable[..., Any]:
        optimizer, scaler = torch.optim.Adam(model.parameters(), lr=5e-5), torch.amp.GradScaler("cuda", enabled=mixed)
        logits = None

        def step(images: torch.Tensor, classes: torch.Tensor) -> None:
            nonlocal logits
            with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
                logits = model(images)
            loss = functional.cross_entropy(logits.float() if mixed else logits, classes)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    return trace_providers(
        "vit_l", __file__, model_provider=lambda: vit_l_16(num_classes=10).to(dtype), device=device,
        input_provider=lambda batch_size=64: (
            torch.zeros(batch_size, 3, 224, 224, dtype=dtype), torch.zeros(batch_size, dtype=torch.long)
        ),
        iteration_provider=steps, **of_release(release),
    )  # fmt: skip


def vit_l_tutorial(device: str, release: str, *, in_backward: bool = False) -> TracedStep:
    """Return a step of ViT-L/16 on one image with Adam, which updates each parameter in backward or all after it."""
    from torchvision.models import vit_l_16

    def steps(model: nn.Module) -> Callable[..., Any]:
        if not in_backward:
            optimizer = torch.optim.Adam(model.parameters())

            def step(image: torch.Tensor) -> None:
                model(image).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            return step
        optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        return lambda image: model(image).sum().backward()

    return trace_providers(
        "vit_l_tutorial", __file__, model_provider=vit_l_16, device=device,
        input_provider=lambda batch_size=1: (torch.zeros(batch_size, 3, 224, 224),), iteration_provider=steps,
        **of_release(release),
    )  # fmt: skip


def mobilenet(device: str, release: str, *, batch: int) -> TracedStep:
    """Return a step of MobileNetV2 with plain SGD."""
    from torchvision.models import mobilenet_v2

    return roller.trace(
        mobilenet_v2, (torch.zeros(batch, 3, 224, 224),), targets=(torch.zeros(batch, dtype=torch.long),),
        loss=functional.cross_entropy, optimizer="sgd", device=device, **of_release(release),
    )  # fmt: skip


def deit(device: str, release: str, *, name: str) -> TracedStep:
    """Return a step of DeiT by its published recipe: AMP, AdamW, soft targets, stochastic depth, an averaged copy."""
    import timm

    def soft_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.sum(-targets * functional.log_softmax(logits, dim=-1), dim=-1).mean()

    return roller.trace(
        lambda: timm.create_model(name, drop_path_rate=0.1), (torch.zeros(128, 3, 224, 224),), loss=soft_loss,
        targets=(torch.zeros(128, 1000),), optimizer=torch.optim.AdamW, amp="fp16", device=device,
        **of_release(release),
    )  # fmt: skip


class Bmm(nn.Module):
    """The module of the report: a matrix shared by all samples times a vector each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("base", torch.randn(41292, 64))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return (batch, 41292, 1) of (batch, 64)."""
        return self.base.expand(tensor.shape[0], -1, -1).bmm(tensor.unsqueeze(-1))


def bmm(device: str, release: str) -> TracedStep:
    """Return the product of the report under AMP, whose input requires a gradient."""

    def steps(model: nn.Module) -> Callable[..., Any]:
        def step(tensor: torch.Tensor) -> None:
            with torch.autocast("cuda", dtype=torch.float16):
                model(tensor.requires_grad_())

        return step

    return trace_providers(
        "bmm", __file__, model_provider=Bmm, device=device, iteration_provider=steps,
        input_provider=lambda batch_size=1024: (torch.zeros(batch_size, 64),), **of_release(release),
    )  # fmt: skip


class RmsNorm(nn.Module):
    """Root mean square in 32 bits, as Mistral's published code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many elements."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Lora(nn.Module):
    """A frozen linear layer, and a product of two small ones in 32 bits beside it."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inner.in_features, rank, bias=False), nn.Linear(rank, inner.out_features, False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens (batch, length, outputs)."""
        result = self.inner(x)
        small = self.up(self.down(self.dropout(x.to(self.down.weight.dtype))))
        return (result + small).to(result.dtype)


class MistralBlock(nn.Module):
    """Attention with 8 heads of keys for 32 of queries, and a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        width, inner = 4096, 14336
        sizes = {"q": width, "k": 1024, "v": 1024, "o": width}
        self.attention = nn.ModuleDict({name: nn.Linear(width, n, bias=False) for name, n in sizes.items()})
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return tokens (batch, length, width)."""
        batch, length, width = x.shape
        normed = self.norm1(x)
        q, k, v = (self.attention[n](normed).view(batch, length, -1, 128).transpose(1, 2) for n in "qkv")
        q, k = (t * cos + torch.cat((-t[..., 64:], t[..., :64]), -1) * sin for t in (q, k))
        k, v = (t[:, :, None].expand(-1, -1, 4, -1, -1).reshape(q.shape) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention["o"](mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.norm2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Mistral(nn.Module):
    """Mistral-7B in float16 with checkpointed blocks; with ``rank``, LoRA of that rank in attention."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(32000, 4096), RmsNorm(4096)
        self.blocks = nn.ModuleList(MistralBlock() for _ in range(32))
        self.head = nn.Linear(4096, 32000, bias=False)
        self.half()
        if rank:
            self.requires_grad_(requires_grad=False)
            for block in self.blocks:
                for name, inner in list(block.attention.items()):
                    block.attention[name] = Lora(inner, rank)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of the next token."""
        x = self.tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        rates = 1.0 / 10000 ** (torch.arange(0, 128, 2, device=tokens.device, dtype=torch.float32) / 128)
        angles = torch.outer(places, rates).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=True)
        logits = self.head(self.norm(x)).float()
        shifted = logits[:, :-1].contiguous().view(-1, 32000)
        return functional.cross_entropy(shifted, tokens[:, 1:].reshape(-1))


def mistral(device: str, release: str, *, batch: int, length: int = 4096, rank: int = 0) -> TracedStep:
    """Return a step of Mistral-7B with AdamW."""
    tokens = torch.zeros(batch, length, dtype=torch.long)
    return roller.trace(
        lambda: Mistral(rank), (tokens,), optimizer=torch.optim.AdamW, device=device, **of_release(release)
    )


def context(device: str, release: str) -> TracedStep:
    """Return what holds one tensor."""
    return roller.trace(lambda: nn.Linear(1, 1), (torch.zeros(1, 1),), device=device, **of_release(release))


def of_release(release: str) -> dict[str, Any]:
    """Return the option of a trace that names a release; none where the options do not know it."""
    from inspect import signature

    return {"torch_release": release} if "torch_release" in signature(roller.trace).parameters else {}


_LENGTH = "4096 tokens, the most of the tuner's default; checkpointed, as its published scenarios"
#: Model and setting of a row -> the case.
CASES = {
    ("ViT-L/16", "Adam, batch 64, fp32"): Case("2.0", "a100", vit_l),
    ("ViT-L/16", "Adam, batch 64, fp16 mixed"): Case("2.0", "a100", partial(vit_l, mixed=True)),
    ("ViT-L/16", "Adam, batch 64, bf16 weights"): Case("2.0", "a100", partial(vit_l, dtype=torch.bfloat16)),
    ("Mistral-7B", "full fine-tuning, fp16, batch 4"): Case("2.2", "a100-80", partial(mistral, batch=4), _LENGTH),
    ("Mistral-7B", "full fine-tuning, fp16, batch 8"): Case("2.2", "a100-80", partial(mistral, batch=8), _LENGTH),
    ("Mistral-7B", "LoRA, fp16, batch 4"): Case("2.2", "a100-80", partial(mistral, batch=4, rank=16), _LENGTH),
    ("BERT-large", "fp32, batch 4, PyTorch before 1.11"): Case("1.10", "v100", partial(bert_large, batch=4)),
    ("BERT-large", "fp32, batch 1 x 4 accumulated"): Case("1.10", "v100", partial(bert_large, batch=1, accumulate=4)),
    ("BERT-large", "the same with checkpointing"): Case(
        "1.10", "v100", partial(bert_large, batch=1, accumulate=4, checkpointed=True)
    ),
    ("BERT-large", "the same with fp16 and checkpointing"): Case(
        "1.10", "v100", partial(bert_large, batch=1, accumulate=4, checkpointed=True, amp="fp16")
    ),
    ("(context alone)", "PyTorch of 2021, one tensor"): Case(
        "1.10", "v100", context, "the source of process_eager_bytes of this device: not counted", is_source=True
    ),
    ("mobilenet_v2", "batch 32, allocated"): Case("1.12", "a100", partial(mobilenet, batch=32), "an A100; SGD"),
    ("mobilenet_v2", "batch 64, allocated"): Case("1.12", "a100", partial(mobilenet, batch=64), "an A100; SGD"),
    ("mobilenet_v2", "batch 32, reserved"): Case("1.12", "a100", partial(mobilenet, batch=32), "an A100; SGD"),
    ("mobilenet_v2", "batch 64, reserved"): Case("1.12", "a100", partial(mobilenet, batch=64), "an A100; SGD"),
    ("bmm under AMP", "see the report"): Case("1.12", "a100", bmm, "an A100"),
    ("ViT-L", "Adam / optimizer in backward"): Case("2.1", "a100", vit_l_tutorial),
    ("DeiT-Ti / S / B", "AMP, batch 128, PyTorch of 2021 (softmax saves its input)"): Case(
        "1.7", "rtx3090", partial(deit, name="deit_tiny_patch16_224")
    ),
}
#: Further figures of a row, in the words of its unit -> the case.
ALSO = {
    ("ViT-L", "4 in backward"): partial(vit_l_tutorial, in_backward=True),
    ("DeiT-Ti / S / B", "8459"): partial(deit, name="deit_small_patch16_224"),
    ("DeiT-Ti / S / B", "17691"): partial(deit, name="deit_base_patch16_224"),
}
