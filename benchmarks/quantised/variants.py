"""One float32 model as what is deployed: QDQ, QLinear operators, dynamic integers, blocks of 4 bits, half precision.

ONNX Runtime's own tools write them, with random images for calibration: no data set is needed to measure speed.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.models import random_feeds

#: Random inputs that ranges of activations are taken from.
CALIBRATIONS = 4
#: Elements along the sum that share a scale in a model of 4-bit weights.
BLOCK = 32


class _Reader:
    """Random feeds, one after another, as :class:`onnxruntime.quantization.CalibrationDataReader` asks for them."""

    def __init__(self, path: Path) -> None:
        self._feeds = iter([random_feeds(path, seed) for seed in range(10, 10 + CALIBRATIONS)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next feeds, ``None`` at the end."""
        return next(self._feeds, None)


def _static(source: Path, target: Path, *, activation: str, form: str = "QDQ", per_channel: bool = True) -> None:
    """Write a model whose activations have ranges known ahead.

    What a softmax reads stays real: behind a mask of -10000 there are no steps left for the scores.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    CalibrationDataReader.register(_Reader)
    with prepared(source) as plain:
        graph = onnx.load(str(plain)).graph
        logits = {n.input[0] for n in graph.node if n.op_type == "Softmax"}
        quantize_static(
            str(plain), str(target), _Reader(source), quant_format=QuantFormat[form], per_channel=per_channel,
            activation_type=QuantType[activation], weight_type=QuantType.QInt8,
            nodes_to_exclude=[n.name for n in graph.node if n.op_type == "Softmax" or n.output[0] in logits],
            extra_options={"ActivationSymmetric": activation == "QInt8"},
        )  # fmt: skip


def _dynamic(source: Path, target: Path) -> None:
    """Write a model whose products quantise their input as it comes: 8-bit integers, weights by column."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with prepared(source) as plain:
        quantize_dynamic(str(plain), str(target), weight_type=QuantType.QInt8, per_channel=True)


def _half(source: Path, target: Path, *, keep_io: bool) -> None:
    """Write a model of float16; with ``keep_io`` its inputs and outputs stay float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(str(source)), keep_io_types=keep_io)
    onnx.save(model, str(target))


def _four_bits(source: Path, target: Path) -> None:
    """Write a model whose products read weights of 4 bits (MatMulNBits)."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(str(source)), block_size=BLOCK, is_symmetric=False)
    quantizer.process()
    onnx.save(quantizer.model.model, str(target))


#: What writes a variant of a model, by name.
VARIANTS: Mapping[str, Callable[[Path, Path], None]] = {
    "float32": lambda source, target: shutil.copyfile(source, target) and None,
    "qdq_u8": partial(_static, activation="QUInt8"),
    "qdq_s8": partial(_static, activation="QInt8"),
    "qdq_u8_tensor": partial(_static, activation="QUInt8", per_channel=False),
    "qlinear_u8": partial(_static, activation="QUInt8", form="QOperator"),
    "dynamic": _dynamic,
    "float16": partial(_half, keep_io=False),
    "float16_inside": partial(_half, keep_io=True),
    "4bit": _four_bits,
}


@contextlib.contextmanager
def prepared(source: Path) -> Iterator[Path]:
    """Yield a copy with shapes inferred and normalisations inside convolutions, as quantisers want it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(target), skip_symbolic_shape=True)
        yield target


def variant(source: Path, name: str) -> Path:
    """Write a variant of a model beside it, unless it is there, and return its path.

    Parameters
    ----------
    source
        A float32 model of one file.
    name
        One of :data:`VARIANTS`.
    """
    target = source.with_name(f"{source.stem}.{name}.onnx")
    if not target.exists():
        told = logging.getLogger()
        level, unfinished = told.level, target.with_suffix(".part")
        told.setLevel(logging.ERROR)  # advice on preparing models, which is followed already
        try:
            VARIANTS[name](source, unfinished)
            _keep_limits(source, unfinished)
        finally:
            told.setLevel(level)
        unfinished.rename(target)
    return target


def _keep_limits(source: Path, target: Path) -> None:
    """Copy what the file says of its inputs, which some tools drop."""
    model = onnx.load(str(target))
    if not model.metadata_props:
        model.metadata_props.extend(onnx.load(str(source)).metadata_props)
        onnx.save(model, str(target))
