"""Networks as ONNX files with random weights, no framework needed: ``python -m benchmarks.models NAME --out DIR``."""

from benchmarks.models.feeds import random_feeds
from benchmarks.models.registry import MODELS, build

__all__ = ["MODELS", "build", "random_feeds"]
