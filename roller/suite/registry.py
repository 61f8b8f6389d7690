"""The sixteen models by name, in print order; this module does not need PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from roller.errors import RollerError, did_you_mean, shown
from roller.suite.entry import SuiteModel

_HOME = "roller.suite.models"
_ROWS = (
    SuiteModel(
        "resnet50", "ResNet-50", "image classification", f"{_HOME}.residual:resnet50", "images", (4, 8, 16, 32, 64),
        25_557_032, {"Conv2d": 53, "Bottleneck": 16}, 25_557_032,
        "He et al. 2015, arXiv:1512.03385; parameters: torchvision.models.resnet50",
        edition=1,
    ),
    SuiteModel(
        "inception_v3", "Inception-v3", "image classification", f"{_HOME}.inception:inception_v3", "images",
        (4, 8, 16, 32, 64), 27_161_264, {"Conv2d": 96}, 27_161_264,
        "Szegedy et al. 2015, arXiv:1512.00567; parameters: torchvision.models.inception_v3 with its auxiliary head",
        edition=1,
    ),
    SuiteModel(
        "seq2seq", "Seq2Seq", "translation", f"{_HOME}.translation:seq2seq", "sentences", (4, 8, 16, 32, 64, 128),
        37_693_440, {"LSTM": 5}, 0, "Luong et al. 2015, arXiv:1508.04025; IWSLT'15, vocabulary of 17,188",
        recurrent=True, edition=1,
    ),
    SuiteModel(
        "transformer", "Transformer", "translation", f"{_HOME}.translation:transformer", "sentences",
        (4, 8, 16, 32, 64, 128), 52_938_752, {"TransformerEncoderLayer": 6, "TransformerDecoderLayer": 6}, 0,
        "Vaswani et al. 2017, arXiv:1706.03762, base; IWSLT'15, vocabulary of 17,188",
        edition=1,
    ),
    SuiteModel(
        "faster_rcnn", "Faster R-CNN", "object detection", f"{_HOME}.detection:faster_rcnn", "images", (1,),
        47_359_845, {"Conv2d": 107, "Bottleneck": 33}, 0,
        "Ren et al. 2015, arXiv:1506.01497, on ResNet-101; VOC 2007, images of about 350 x 500",
        edition=1,
    ),
    SuiteModel(
        "mask_rcnn", "Mask R-CNN", "object detection", f"{_HOME}.detection:mask_rcnn", "images", (1, 2, 4),
        44_401_393, {"Conv2d": 69, "ConvTranspose2d": 1, "Bottleneck": 16}, 44_401_393,
        "He et al. 2017, arXiv:1703.06870, on ResNet-50; parameters: torchvision's maskrcnn_resnet50_fpn",
        edition=2,
    ),
    SuiteModel(
        "efficientdet_d0", "EfficientDet-D0", "object detection", f"{_HOME}.efficientdet:efficientdet_d0", "images",
        (1, 2, 4, 8), 3_879_683, {"BiFPN": 3, "MBConv": 16}, 3_900_000,
        "Tan et al. 2019, arXiv:1911.09070; parameters: its table 2, rounded",
        edition=2,
    ),
    SuiteModel(
        "deep_speech_2", "Deep Speech 2", "speech recognition", f"{_HOME}.speech:deep_speech_2", "seconds of audio",
        (1, 2, 4, 8), 60_729_984, {"Conv2d": 2, "RNN": 5}, 0,
        "Amodei et al. 2015, arXiv:1512.02595; five recurrent layers of its seven; LibriSpeech",
        recurrent=True, edition=1,
    ),
    SuiteModel(
        "wgan_gp", "WGAN-GP", "adversarial learning", f"{_HOME}.adversarial:wgan_gp", "images", (4, 8, 16, 32, 64),
        16_032_324, {"Up": 4, "Down": 4, "Conv2d": 26, "Linear": 2}, 0,
        "Gulrajani et al. 2017, arXiv:1704.00028; its residual networks of 64 x 64, 14 layers each",
        edition=1,
    ),
    SuiteModel(
        "a3c", "A3C", "reinforcement learning", f"{_HOME}.games:a3c", "frames", (8, 16, 32, 64, 128),
        677_943, {"Conv2d": 2, "Linear": 2}, 0, "Mnih et al. 2016, arXiv:1602.01783; the learner alone",
        edition=1,
    ),
    SuiteModel(
        "minigo", "MiniGo", "reinforcement learning", f"{_HOME}.games:minigo", "positions", (8, 16, 32, 64, 128),
        22_827_877, {"Residual": 19}, 0, "MLPerf's MiniGo, after Silver et al. 2017; the learner alone",
        edition=2,
    ),
    SuiteModel(
        "bert_base", "BERT base", "language modelling", f"{_HOME}.bert:bert_base", "sequences", (1, 2, 4, 8, 16),
        108_893_186, {"Block": 12}, 108_893_186,
        "Devlin et al. 2018, arXiv:1810.04805; parameters: transformers' BertForQuestionAnswering",
        edition=2,
    ),
    SuiteModel(
        "bert_large", "BERT large", "language modelling", f"{_HOME}.bert:bert_large", "sequences", (1, 2, 4, 8),
        334_094_338, {"Block": 24}, 334_094_338,
        "Devlin et al. 2018, arXiv:1810.04805; parameters: transformers' BertForQuestionAnswering",
        edition=2,
    ),
    SuiteModel(
        "ncf", "NCF", "recommendation", f"{_HOME}.recommendation:ncf", "interactions", (2048, 16_384, 131_072),
        31_832_577, {"Embedding": 4, "Linear": 4}, 31_832_577,
        "He et al. 2017, arXiv:1708.05031; sizes of MLPerf v0.5 for MovieLens-20M",
    ),
    SuiteModel(
        "decoder", "SmolLM2-135M", "language modelling", f"{_HOME}.language:decoder", "tokens", (1, 2, 4, 8),
        134_515_008, {"DecoderBlock": 30}, 134_515_008,
        "Allal et al. 2025, arXiv:2502.02737; parameters: HuggingFaceTB/SmolLM2-135M",
    ),
    SuiteModel(
        "diffusion_unet", "DDPM", "image generation", f"{_HOME}.diffusion:diffusion_unet", "images",
        (8, 16, 32, 64, 128), 35_746_307, {"ResBlock": 22, "PixelAttention": 6}, 35_746_307,
        "Ho et al. 2020, arXiv:2006.11239, for CIFAR-10: 35.7 million parameters",
    ),
)  # fmt: skip

#: Name -> entry of each of the sixteen models.
MODELS: Mapping[str, SuiteModel] = {row.name: row for row in _ROWS}


def models_of(names: Iterable[str]) -> tuple[SuiteModel, ...]:
    """Return the named models in the order of ``names``, or all models if ``names`` is empty.

    Raises
    ------
    RollerError
        If a name is unknown.

    Examples
    --------
    >>> [model.title for model in models_of(["bert_base", "ncf"])]
    ['BERT base', 'NCF']
    """
    asked = list(dict.fromkeys(names))
    wrong = next((name for name in asked if name not in MODELS), None)
    if wrong is not None:
        hint = did_you_mean(wrong, MODELS)
        raise RollerError(f"suite: expected one of {', '.join(MODELS)}, got {shown(wrong)}{hint}.")
    return tuple(MODELS[name] for name in asked) or tuple(MODELS.values())
