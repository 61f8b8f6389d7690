"""Optimizers and tricks that save memory, as an entry file has them: bytes are those of PyTorch, or of the layout."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils import checkpoint as checkpointing  # noqa: E402

import roller  # noqa: E402
from roller.errors import ModelError  # noqa: E402
from roller.insight.trace.pytorch import block_wise  # noqa: E402
from roller.insight.trace.trace import FreeEvent  # noqa: E402
from roller.insight.tracing import trace_providers  # noqa: E402

SIZES = (256, 512)


def net():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))


def traced(steps, make=net):
    return trace_providers(
        "tricks", __file__, model_provider=make, iteration_provider=steps,
        input_provider=lambda batch_size=32: (torch.zeros(batch_size, 256),),
    )  # fmt: skip


def bytes_of(step, kind):
    return sum(s.size_bytes for s in step.storages.values() if s.kind == kind)


def live_bytes(step):
    freed = {e.storage for e in step.events if isinstance(e, FreeEvent)}
    return sum(e.size_bytes for n, e in step.allocations.items() if n not in freed)


def plain(optimizer_of):
    def steps(model):
        optimizer = optimizer_of(model.parameters())

        def step(x):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        return step

    return steps


def matrices(parameters):
    return [p for p in parameters if p.dim() == 2]


OPTIMIZERS = {
    "adafactor": torch.optim.Adafactor if hasattr(torch.optim, "Adafactor") else None,
    "muon": (lambda ps: torch.optim.Muon(matrices(ps))) if hasattr(torch.optim, "Muon") else None,
    "lion": block_wise.Lion,
    "adamw": torch.optim.AdamW,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_an_optimizer_have_the_bytes_that_pytorch_gives_them(name):
    if OPTIMIZERS[name] is None:
        pytest.skip("this release of PyTorch has no such optimizer")
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    model(torch.zeros(2, 256)).sum().backward()
    optimizer.step()
    real = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim()]
    found = traced(plain(OPTIMIZERS[name]))
    assert bytes_of(found, "optimizer_state") == sum(t.untyped_storage().nbytes() for t in real)


@pytest.mark.parametrize(("argument", "value"), [("block_wise", False), ("percentile_clipping", 5)])
def test_arguments_that_change_the_bytes_of_an_optimizer_are_refused(argument, value):
    parameters = [torch.nn.Parameter(torch.empty(8, 8))]
    with pytest.raises(ModelError, match=rf"AdamW8bit: {argument}: expected .*, got {value}\. Leave it out"):
        block_wise.AdamW8bit(parameters, **{argument: value})
    block_wise.AdamW8bit(parameters, block_wise=True, percentile_clipping=100)


@pytest.mark.parametrize(
    ("name", "large", "small"),
    [
        # A byte and a 256th of four for each element and state; parameters below 4096 elements keep four bytes.
        ("adamw_8bit", 2 * (2**21 + 4 * 2**13), 8 * 2048),
        ("lion_8bit", 2**21 + 4 * 2**13, 4 * 2048),
        ("paged_adamw_8bit", 2 * 4 * 2**13, 8 * 2048),
        ("paged_adamw_32bit", 0, 8 * 2048),
    ],
)
def test_block_wise_states_have_the_bytes_of_the_published_layout(name, large, small):
    found = roller.trace(lambda: nn.Linear(1024, 2048), torch.zeros(8, 1024), optimizer=name, device="a100")
    sizes = dict.fromkeys(("weight", "bias"), 0)
    for storage in found.storages.values():
        if storage.kind == "optimizer_state":
            sizes[storage.name] += storage.size_bytes
    assert sizes == {"weight": large, "bias": small}
    update = [o for o in found.steady() if o.phase == "optimizer"]
    assert [o.name for o in update] == ["roller.update_block_wise.default"] * 2
    assert found.forecast("a100").unmapped_share == 0


def test_a_paged_update_costs_what_its_states_move():
    priced = {}
    for name in ("adamw_8bit", "paged_adamw_8bit"):
        found = roller.trace(lambda: nn.Linear(4096, 4096), torch.zeros(8, 4096), optimizer=name, device="a100")
        priced[name] = max(p.seconds for o, p in found.forecast("a100").operators if o.phase == "optimizer")
    assert priced["paged_adamw_8bit"] == pytest.approx(priced["adamw_8bit"], rel=0.02)


def test_block_wise_classes_say_that_they_compute_nothing():
    layer = nn.Linear(256, 256)
    layer(torch.zeros(1, 256)).sum().backward()
    with pytest.raises(ModelError, match="Train with bitsandbytes"):
        block_wise.AdamW8bit(layer.parameters()).step()
    with pytest.raises(ModelError, match="expected nf4 or fp4, got 'int4'"):
        block_wise.Linear4bit(8, 8, quant_type="int4")


class Adapted(nn.Module):
    """QLoRA: a frozen 4-bit layer, and a trained product beside it."""

    def __init__(self):
        super().__init__()
        self.inner = block_wise.Linear4bit(256, 4096, bias=False, compute_dtype=torch.bfloat16)
        self.down, self.up = nn.Linear(256, 16, bias=False), nn.Linear(16, 4096, bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def test_qlora_holds_half_a_byte_for_each_frozen_weight_and_scales_of_scales():
    found = traced(plain(torch.optim.AdamW), Adapted)
    sizes = {s.name: s.size_bytes for s in found.storages.values() if s.kind in ("parameter", "buffer")}
    count = 256 * 4096
    assert {n.removeprefix("inner."): size for n, size in sizes.items() if n.startswith("inner.")} == {
        "weight": count // 2, "absmax": count // 64, "nested_absmax": 4 * count // 64 // 256, "code": 64,
        "nested_code": 1024, "offset": 4,
    }  # fmt: skip
    learnt = 4 * 16 * (256 + 4096)
    assert bytes_of(found, "optimizer_state") == 2 * learnt and bytes_of(found, "gradient") % learnt == 0
    widened = [o for o in found.steady() if o.name == "roller.dequantize_4bit.default"]
    assert {o.phase for o in widened} == {"forward"} and found.forecast("a100").unmapped_share == 0


def test_an_optimizer_in_backward_holds_one_gradient_at_a_time():
    def steps(model):
        optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        return lambda x: model(x).sum().backward()

    weights = 4 * (2 * 256 * 512 + 256 + 512)
    found, usual = (f.memory("a100").by_kind() for f in (traced(steps), traced(plain(torch.optim.Adam))))
    assert usual["gradient"] == weights and found["gradient"] <= 4 * 256 * 512
    assert found["optimizer_state"] == usual["optimizer_state"] == 2 * weights


def test_offloaded_activations_are_on_the_host_until_backward():
    def steps(model):
        def step(x):
            with torch.autograd.graph.save_on_cpu():
                loss = model(x).sum()
            loss.backward()

        return step

    found = traced(steps)
    copies = [o for o in found.steady() if "copy" in o.name and o.phase in ("forward", "backward")]
    assert copies and found.memory("a100").by_kind().get("activation", 0) < 32 * 512 * 4


def test_selective_checkpointing_saves_what_its_policy_names():
    def steps(saved, model):
        contexts = partial(checkpointing.create_selective_checkpoint_contexts, saved)

        def step(x):
            checkpointing.checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()

        return step

    products = [
        sum(o.name == "aten.addmm.default" for o in traced(partial(steps, saved)).steady())
        for saved in ([torch.ops.aten.addmm.default], [])
    ]
    assert products == [2, 3]  # with nothing saved, the first runs again; nothing needs the second one's result


def test_an_averaged_copy_takes_the_bytes_of_the_weights():
    def steps(model):
        averaged = torch.optim.swa_utils.AveragedModel(model)

        def step(x):
            model(x).sum().backward()
            averaged.update_parameters(model)

        return step

    held = [live_bytes(traced(s)) for s in (steps, lambda model: lambda x: model(x).sum().backward())]
    assert held[0] - held[1] == 4 * (2 * 256 * 512 + 256 + 512)


class Packed(nn.Module):
    """Attention over sequences that lie one after the other in one row."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.bfloat16()

    def forward(self, x):
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = self.qkv(x.bfloat16()).view(-1, 3, 4, 64).unbind(1)
        ends = torch.tensor([0, 10, 20, 32], dtype=torch.int32, device="cuda")
        return self.out(varlen_attn(q, k, v, ends, ends, 12, 12).reshape(-1, 256))


def test_packed_sequences_need_no_matrix_of_scores():
    pytest.importorskip("torch.nn.attention.varlen")
    found = traced(plain(torch.optim.SGD), Packed)
    names = {o.name.split(".")[1] for o in found.steady()}
    assert any("attn" in n or "attention" in n for n in names)
    assert all(s.size_bytes < 2 * 768 * 256 + 1 for s in found.storages.values())
