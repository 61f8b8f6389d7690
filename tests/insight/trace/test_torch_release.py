"""What older releases of PyTorch save and allocate."""

from __future__ import annotations

import json

import pytest

from roller.errors import ModelError
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.torch_release import TorchRelease

MIB = 1 << 20


def test_a_release_is_read_and_others_are_refused():
    assert TorchRelease.parse("2.1.1+cu121") == TorchRelease(2, 1) and TorchRelease.parse(None) == TorchRelease()
    for wrong in ("1.5", "two", "1", "2.x"):
        with pytest.raises(ModelError, match=r"expected a version of PyTorch from 1\.6 on"):
            TraceOptions(torch_release=wrong)


def test_what_changed_changed_in_its_release():
    older, newer = TorchRelease.parse("1.10"), TorchRelease.parse("1.11")
    assert (older.softmax_saves_input, newer.softmax_saves_input) == (True, False)
    older, newer = TorchRelease.parse("1.13"), TorchRelease.parse("2.0")
    for name in ("has_fused_attention", "groups_optimizers", "drops_gradients", "loads_lazily"):
        assert (getattr(older, name), getattr(newer, name)) == (False, True)
    assert not TorchRelease.parse("2.0").has_expandable_segments and TorchRelease.parse("2.1").has_expandable_segments


torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import roller  # noqa: E402
from roller.insight.memory.settings import AllocatorSettings, AllocatorSettingsError  # noqa: E402
from roller.insight.memory.simulate import Library  # noqa: E402
from roller.insight.trace.trace import FreeEvent  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402


class Scores(nn.Module):
    """A softmax between products, whose input nothing else needs."""

    def forward(self, x):
        return functional.softmax(x @ x.transpose(-2, -1), -1) @ x


def saved_bytes(step):
    """Return the bytes that are live when the last forward has ended."""
    begin = next(o.index for o in step.steady() if o.phase == "backward")
    live = {}
    for event in step.events:
        if event.operator >= begin:
            break
        if isinstance(event, FreeEvent):
            live.pop(event.storage)
        else:
            live[event.storage] = event.size_bytes
    return sum(live.values())


def test_softmax_saves_its_input_before_1_11():
    x = torch.zeros(4, 1024, 64, requires_grad=True)
    module = nn.Sequential(nn.Linear(64, 64), Scores())
    newer, older = (roller.trace(module, x, loss=torch.sum, device="a100", torch_release=r) for r in ("1.11", "1.10"))
    assert saved_bytes(older) - saved_bytes(newer) == 4 * 4 * 1024 * 1024
    assert [o.name for o in newer.steady()] == [o.name for o in older.steady()]
    assert older.options["torch_release"] == "1.10" and newer.at(torch_release="1.10") == older


def test_checkpointed_blocks_save_no_input_of_softmax_in_forward():
    x = torch.zeros(4, 1024, 64, requires_grad=True)
    module = nn.Sequential(nn.Linear(64, 64), nn.ModuleList([Scores()])[0], nn.Linear(64, 64))
    steps = [
        roller.trace(module, x, loss=torch.sum, device="a100", torch_release=r, checkpoint="1")
        for r in ("1.11", "1.10")
    ]
    assert saved_bytes(steps[0]) == saved_bytes(steps[1])


class Attended(nn.Module):
    """Fused attention, where the release has it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = self.qkv(x).view(4, 256, 3, 1, 64).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(("release", "fused"), [("2.0", True), ("1.13", False)])
def test_attention_is_two_products_and_a_softmax_before_2_0(release, fused):
    found = roller.trace(Attended(), torch.zeros(4, 256, 64), loss=torch.sum, device="a100", torch_release=release)
    names = [o.name for o in found.steady() if o.phase == "forward"]
    assert any("attention" in n for n in names) is fused and ("aten._softmax.default" in names) is not fused


def test_a_bias_of_attention_is_padded_before_it_is_expanded():
    class Biased(Attended):
        def forward(self, x):
            q, k, v = self.qkv(x).view(4, 250, 3, 1, 64).permute(2, 0, 3, 1, 4)
            mask = torch.zeros(1, 1, 250, 250, device=x.device)
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    found = roller.trace(Biased(), torch.zeros(4, 250, 64), device="a100")
    pads = [o for o in found.steady() if o.name == "aten.constant_pad_nd.default"]
    assert [o.outputs[0].shape for o in pads] == [(1, 1, 250, 256)]
    older = roller.trace(Biased(), torch.zeros(4, 250, 64), device="a100", torch_release="2.0")
    assert "aten._scaled_dot_product_efficient_attention.default" not in [o.name for o in older.steady()]


def test_optimizers_update_one_parameter_after_the_other_and_keep_gradients_before_2_0():
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))

    def step_of(release):
        return roller.trace(
            model, torch.zeros(2, 512), optimizer=torch.optim.Adam, device="a100", torch_release=release
        )

    newer, older = step_of("2.0"), step_of("1.13")
    assert any("_foreach_" in o.name for o in newer.steady()) and not any("_foreach_" in o.name for o in older.steady())
    weight = 4 * 512 * 512
    # The square roots of all second moments, or of one and its quotient.
    most = [s.memory("a100").peak.requested_bytes for s in (newer, older)]
    assert most[0] - most[1] in range(2 * weight - MIB, 2 * weight + 20 * MIB)
    assert not any(o.name.startswith("aten.zero_") for o in newer.steady())
    assert sum(o.name.startswith("aten.zero_") for o in older.steady()) == 4


def test_workspaces_come_from_the_allocator_from_1_13_on():
    from roller.hardware import load_spec

    spec = load_spec("v100")
    assert Library.of(spec, {"torch_release": "1.12"}).workspace_bytes == 0
    assert Library.of(spec, {"torch_release": "1.13"}).workspace_bytes == Library.of(spec).workspace_bytes > 0


def test_older_releases_are_refused_on_a_processor_and_unknown_settings_with_them():
    with pytest.raises(ModelError, match=r"expected none on a CPU, got '1\.10'"):
        roller.trace(nn.Linear(2, 2), torch.zeros(1, 2), device="cpu-avx2", torch_release="1.10")
    step = roller.trace(nn.Linear(2, 2), torch.zeros(1, 2), device="a100", torch_release="2.0")
    with pytest.raises(AllocatorSettingsError, match=r"expected a release from 2\.1 on, got 2\.0"):
        step.memory("a100", settings=AllocatorSettings(expandable_segments=True))


def test_an_entry_file_sets_its_allocator(tmp_path):
    path = tmp_path / "entry.py"
    path.write_text(
        "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\nimport torch\n"
        "def model_provider(): return torch.nn.Linear(2048, 1280)\n"
        "def input_provider(batch_size=4): return (torch.zeros(batch_size, 2048),)\n"
        "def iteration_provider(model): return lambda x: model(x).sum().backward()\n"
    )
    import os

    before = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    step = trace_entry(path)
    assert step.options["allocator"] == "expandable_segments:True"
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == before
    plain = step.memory("a100", settings=AllocatorSettings())
    assert step.memory("a100").peak.reserved_bytes != plain.peak.reserved_bytes


def test_a_profile_takes_a_release_and_says_so(tmp_path, cli):
    entry = tmp_path / "entry.py"
    entry.write_text(
        "import torch\n"
        "def model_provider(): return torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Softmax(-1))\n"
        "def input_provider(batch_size=512): return (torch.zeros(batch_size, 64),)\n"
        "def iteration_provider(model): return lambda x: model(x).square().sum().backward()\n"
    )
    (today,), (older,) = (
        json.loads(cli("profile", entry, "--json", *options)[1]) for options in ([], ["--torch-release", "1.10"])
    )
    assert older["total_bytes"] > today["total_bytes"]
    said = "operators and memory are those of PyTorch 1.10"
    assert [any(note.startswith(said) for note in found["notes"]) for found in (today, older)] == [False, True]
    code, _, err = cli("profile", entry, "--measure", "--torch-release", "1.10")
    assert code == 2 and "--torch-release" in err


class Unfused(nn.Module):
    """An attention over five dimensions, which no fused kernel takes."""

    def forward(self, x):
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("release", "computed", "scalings"), [("1.13", "float16", 1), ("2.4", "float16", 2), ("2.5", "float32", 2)]
)
def test_attention_without_a_fused_kernel_widens_from_2_5_on_and_scales_both_operands_from_2_0_on(
    release, computed, scalings
):
    x = torch.empty(2, 3, 4, 16, 8, dtype=torch.float16, device="meta")
    step = roller.trace(Unfused(), x, device="rtx3090", torch_release=release).steady()
    assert {o.inputs[0].dtype for o in step if "bmm" in o.name} == {computed}
    assert sum("aten.mul" in o.name for o in step) == scalings
    (softmax,) = (o for o in step if "softmax" in o.name)
    assert softmax.outputs[0].dtype == computed
