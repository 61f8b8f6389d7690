"""Which models of well-known libraries trace: one training step of each, on a GPU that is not here.

``python -m benchmarks.insight zoo``: transformers by small configurations of every family, timm and torchvision as they
are named, a module of Lightning by its own step. A row has the operators of the step, and the bytes of weights,
gradients and optimizer state after it. ``--write`` writes the table of the documentation. What does not trace, or a
library that is not installed, is a row that says so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer

RESULTS = Path(__file__).parents[1] / "results" / "insight_zoo.md"
DEVICE = "a100"

#: Class of a configuration and of a model in transformers, with what makes it small.
_TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "max_position_embeddings": 128}
_HEADS = {"decoder_layers": 2, "encoder_layers": 2, "d_model": 64, "vocab_size": 256}
_SMALL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForMaskedLM": ("BertConfig", _TEXT),
    "BertForSequenceClassification": ("BertConfig", _TEXT),
    "RobertaForMaskedLM": ("RobertaConfig", {**_TEXT, "max_position_embeddings": 64}),
    "DistilBertForMaskedLM": ("DistilBertConfig", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "ModernBertForMaskedLM": ("ModernBertConfig", {**_TEXT, **_SMALL, "cls_token_id": 1, "sep_token_id": 2}),
    "AlbertForMaskedLM": ("AlbertConfig", {**_TEXT, "embedding_size": 32}),
    "ElectraForMaskedLM": ("ElectraConfig", _TEXT),
    "DebertaV2ForMaskedLM": ("DebertaV2Config", _TEXT),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, **_SMALL}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", _TEXT),
    "OPTForCausalLM": ("OPTConfig", {**_TEXT, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "LlamaForCausalLM": ("LlamaConfig", _GROUPED),
    "MistralForCausalLM": ("MistralConfig", _GROUPED),
    "Qwen2ForCausalLM": ("Qwen2Config", _GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", {**_GROUPED, "head_dim": 16}),
    "GemmaForCausalLM": ("GemmaConfig", {**_GROUPED, "head_dim": 16}),
    "PhiForCausalLM": ("PhiConfig", _GROUPED),
    "MixtralForCausalLM": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "T5ForConditionalGeneration": ("T5Config", {
        "decoder_start_token_id": 0, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
        "vocab_size": 256}),
    "BartForConditionalGeneration": ("BartConfig", {**_HEADS, **_SMALL, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
                                                    "encoder_attention_heads": 4, "decoder_attention_heads": 4}),
    "ViTForImageClassification": ("ViTConfig", {**_TEXT, "image_size": 32, "patch_size": 8}),
    "SwinForImageClassification": ("SwinConfig", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1],
                                                  "num_heads": [2, 4], "window_size": 4}),
    "ConvNextForImageClassification": ("ConvNextConfig", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}),
    "SegformerForImageClassification": ("SegformerConfig", {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]}),
    "WhisperForConditionalGeneration": ("WhisperConfig", {
        **_HEADS, **_SMALL, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "num_mel_bins": 16, "max_source_positions": 32, "decoder_start_token_id": 1}),
    "Wav2Vec2ForSequenceClassification": ("Wav2Vec2Config", {
        **_TEXT, "conv_dim": (32, 32), "conv_kernel": (8, 4), "conv_stride": (4, 2), "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}),
    "CLIPModel": ("CLIPConfig", {"text_config": {**_TEXT, **_SMALL}, "projection_dim": 32,
                                 "vision_config": {**_TEXT, "image_size": 32, "patch_size": 8}}),
}  # fmt: skip
TIMM = [
    "resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "wide_resnet50_2", "seresnext50_32x4d",
    "resnetv2_50x1_bit", "res2net50_26w_4s", "regnety_032", "regnetx_032", "efficientnet_b0", "efficientnet_b3",
    "tf_efficientnetv2_s", "mobilenetv2_100", "mobilenetv3_large_100", "mobilenetv3_small_100",
    "mobilenetv4_conv_small", "mnasnet_100", "ghostnet_100", "densenet121", "vgg16", "vgg16_bn", "inception_v3",
    "inception_v4", "xception41", "convnext_tiny", "convnextv2_tiny", "vit_tiny_patch16_224",
    "vit_small_patch16_224", "vit_base_patch16_224", "deit_small_patch16_224", "deit3_small_patch16_224",
    "beit_base_patch16_224", "eva02_tiny_patch14_224", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256",
    "cait_xxs24_224", "mixer_b16_224", "resmlp_12_224", "poolformer_s12", "coat_lite_tiny", "crossvit_9_240",
    "levit_128", "maxvit_tiny_tf_224", "edgenext_small", "mobilevit_s", "nf_resnet50", "hrnet_w18", "dla34",
    "dpn68", "fastvit_t8", "volo_d1_224", "twins_svt_small", "pvt_v2_b0", "davit_tiny", "focalnet_tiny_srf",
]  # fmt: skip
DETECTORS = (
    "fasterrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16", "maskrcnn_resnet50_fpn", "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What came of one model: operators of a step, bytes of weights, gradients and optimizer, or why there is none."""

    library: str
    model: str
    operators: int = 0
    weights_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    seconds: float = 0.0
    said: str = ""


def found_of(library: str, name: str, make: Callable[[], Any], *args: Any, **options: Any) -> Found:
    """Return what a trace of one model has; an error is a row too."""
    import roller

    start = time.process_time()
    try:
        step = roller.trace(make, *args, device=DEVICE, **options)
    except roller.RollerError as error:
        return Found(library, name, said=str(error).splitlines()[0])
    seconds = time.process_time() - start
    return Found(library, name, len(step.steady()), *held(step), seconds)


def held(step: Any) -> tuple[int, int, int]:
    """Return bytes of weights, gradients and optimizer that are alive after a step."""
    alive = {e.storage: e for e in step.events if hasattr(e, "size_bytes")}
    for event in step.events:
        if not hasattr(event, "size_bytes"):
            alive.pop(event.storage)
    kinds = ("parameter", "gradient", "optimizer_state")
    sizes = [sum(e.size_bytes for n, e in alive.items() if step.storages[n].kind == kind) for kind in kinds]
    return sizes[0], sizes[1], sizes[2]


def transformers_of(name: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Return what builds a small model of transformers, and inputs with labels."""
    import torch
    import transformers

    config_name, small = TRANSFORMERS[name]
    config = getattr(transformers, config_name)(**small)
    tokens = torch.ones(2, 16, dtype=torch.long)
    text = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    images = {"pixel_values": torch.zeros(2, 3, 32, 32)}
    one = torch.zeros(2, dtype=torch.long)
    if name == "CLIPModel":
        inputs = {**text, **images, "return_loss": True}
    elif name.startswith("Whisper"):
        inputs = {"input_features": torch.zeros(2, 16, 64), "labels": tokens}
    elif name.startswith("Wav2Vec2"):
        inputs = {"input_values": torch.zeros(2, 400), "labels": one}
    elif "Image" in name:
        inputs = {**images, "labels": one}
    else:
        inputs = {**text, "labels": one if "Sequence" in name else tokens}
    return lambda: getattr(transformers, name)(config), inputs


def of_transformers() -> Iterator[Found]:
    """Yield a row for every model of transformers."""
    for name in TRANSFORMERS:
        try:
            make, inputs = transformers_of(name)
        except Exception as error:  # noqa: BLE001 - a release without it
            yield Found("transformers", name, said=f"not built: {error}")
            continue
        yield found_of("transformers", name, make, inputs, optimizer="adamw")


def of_timm(names: list[str] | None = None) -> Iterator[Found]:
    """Yield a row for every model of timm, at its own size of images."""
    declare_torchvision()
    import timm
    import torch

    for name in names or TIMM:
        try:
            size = timm.get_pretrained_cfg(name).input_size
        except Exception as error:  # noqa: BLE001 - a release without it
            yield Found("timm", name, said=f"not built: {error}")
            continue
        images, classes = torch.zeros(2, *size), torch.zeros(2, dtype=torch.long)
        yield found_of(
            "timm", name, lambda name=name: timm.create_model(name), images, optimizer="adamw",
            loss=torch.nn.functional.cross_entropy, targets=[classes],
        )  # fmt: skip


def of_torchvision() -> Iterator[Found]:
    """Yield a row for every detector of torchvision: two images, two boxes in each."""
    declare_torchvision()
    import torch
    from torchvision.models import detection

    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [20.0, 30.0, 90.0, 80.0]])
    for name in DETECTORS:
        target = {"boxes": boxes, "labels": torch.ones(2, dtype=torch.long)}
        if name.startswith("mask"):
            target["masks"] = torch.ones(2, 128, 128, dtype=torch.uint8)
        if name.startswith("keypoint"):
            target["keypoints"] = torch.ones(2, 17, 3)
        inputs = ([torch.zeros(3, 128, 128) for _ in range(2)], [dict(target) for _ in range(2)])
        make = lambda name=name: getattr(detection, name)(weights=None, weights_backbone=None)  # noqa: E731
        yield found_of(
            "torchvision", name, make, inputs, optimizer="adamw", loss=lambda losses: sum(losses.values())
        )  # fmt: skip


def of_lightning() -> Iterator[Found]:
    """Yield a row for a module of Lightning, by its own step and optimizer, as an entry file has it."""
    import tempfile

    import roller
    from roller.insight.tracing import trace_entry

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lightning_entry.py"
        path.write_text(LIGHTNING, encoding="utf-8")
        start = time.process_time()
        try:
            step = trace_entry(path, device=DEVICE)
        except roller.RollerError as error:
            yield Found("lightning", "LightningModule", said=str(error).splitlines()[0])
            return
        yield Found("lightning", "LightningModule", len(step.steady()), *held(step), time.process_time() - start)


#: An entry file of a module of Lightning.
LIGHTNING = """
import lightning
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10)}


def model_provider():
    return Classifier()


def input_provider(batch_size=16):
    return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)


def iteration_provider(module):
    found = module.configure_optimizers()

    def step(batch):
        found["optimizer"].zero_grad()
        module.training_step(batch, 0).backward()
        found["optimizer"].step()
        found["lr_scheduler"].step()

    return step
"""


def declare_torchvision() -> None:
    """Declare what torchvision's compiled operators take, where its build does not fit that of PyTorch.

    The wheels of the package index are built for CUDA; beside a CPU's PyTorch they load without their operators.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _KEPT or "torchvision" in sys.modules:
        return
    try:
        torch.ops.load_library(next(Path(spec.origin).parent.glob("_C*.so")))
        return
    except (OSError, StopIteration):  # built for another PyTorch
        pass
    library = torch.library.Library("torchvision", "DEF")
    _KEPT.append(library)
    for schema in SCHEMAS:
        library.define(schema)
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    with patch.object(torch.ops, "load_library"):
        importlib.import_module("torchvision")


_KEPT: list[Any] = []
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    "SymInt pooled_height, SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, "
    "SymInt height, SymInt width) -> Tensor",
    "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) "
    "-> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "qroi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_cuda_version() -> int",
)

LIBRARIES: dict[str, Callable[[], Iterator[Found]]] = {
    "transformers": of_transformers,
    "timm": of_timm,
    "torchvision": of_torchvision,
    "lightning": of_lightning,
}


def rows(libraries: list[str]) -> Iterator[Found]:
    """Yield the rows of libraries; one that is not installed is a row that says so."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            yield Found(library, "-", said="not installed")
        else:
            declare_torchvision()
            yield from LIBRARIES[library]()


def table(found: list[Found]) -> str:
    """Return rows as a table of Markdown."""
    lines = [
        "| library | model | operators of a step | weights | gradients | optimizer | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sizes = (row.weights_bytes, row.gradients_bytes, row.optimizer_bytes)
        cells = [f"{size / 2**20:.2f} MiB" for size in sizes] if row.operators else ["-"] * 3
        said = row.said.replace("|", "/")
        lines.append(f"| {row.library} | {row.model} | {row.operators or '-'} | {' | '.join(cells)} | {said} |")
    return "\n".join(lines)


def main(
    only: Annotated[str, typer.Option(help="Libraries, e.g. timm,transformers.")] = ",".join(LIBRARIES),
    write: Annotated[bool, typer.Option(help="Write the table of the documentation.")] = False,
) -> None:
    """Trace a training step of every model and print what came of it."""
    found = []
    for row in rows([name for name in only.split(",") if name]):
        found.append(row)
        print(
            f"{row.library:13} {row.model:36} {row.operators:6} operators {row.seconds:6.2f} s  {row.said}", flush=True
        )
    good = sum(bool(row.operators) for row in found)
    print(f"{good} of {len(found)} trace")
    if write:
        versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", *LIBRARIES) if _installed(n))
        text = f"{good} of {len(found)} models trace ({versions}).\n\n{table(found)}\n"
        RESULTS.write_text(text, encoding="utf-8")


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
