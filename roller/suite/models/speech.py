"""Deep Speech 2 (Amodei et al., 2015, arXiv:1512.02595): convolutions over spectrograms, then recurrent layers."""

# As in the published benchmark, there are two convolutional layers and five recurrent ones of the publication's seven.
# Recurrent layers have 1,760 units as published, and tanh, which libraries have, instead of a ReLU clipped at 20.

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory

#: Numbers of bins of a spectrogram, of frames per second, and of letters, including the CTC blank, which is letter 0.
BINS, FRAMES_PER_S, LETTERS = 161, 100, 29
#: Mean length of an utterance, in seconds: 100.6 hours in 28,539 utterances of train-clean-100 (Panayotov et al.,
#: "Librispeech", 2015).
SECONDS = 12.69
#: Approximate number of letters spoken per second in read English.
LETTERS_PER_S = 14
UNITS = 1760


class Convolution(nn.Sequential):
    """A convolution over bins and frames, batch norm, and a ReLU clipped at 20."""

    def __init__(
        self, inputs: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(outputs), nn.Hardtanh(0, 20, inplace=True),
        )  # fmt: skip


class Recurrent(nn.Module):
    """Batch norm over all frames, and a bidirectional recurrent layer whose two directions are added."""

    def __init__(self, inputs: int, units: int, *, normed: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs) if normed else None
        self.layer = nn.RNN(inputs, units, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape ``(frames, batch, units)``."""
        if self.norm is not None:
            x = self.norm(x.flatten(0, 1)).view(x.shape)
        both, _ = self.layer(x)
        return both.unflatten(-1, (2, -1)).sum(2)


class DeepSpeech2(nn.Module):
    """Network that maps spectrograms to letters; ``layers`` is the number of recurrent layers."""

    def __init__(self, layers: int = 5, units: int = UNITS, channels: int = 32) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            Convolution(1, channels, (41, 11), (2, 2), (20, 5)),
            Convolution(channels, channels, (21, 11), (2, 1), (10, 5)),
        )
        bins = (BINS + 3) // 4
        inputs = [channels * bins, *[units] * (layers - 1)]
        self.recurrent = nn.Sequential(*(Recurrent(n, units, normed=i > 0) for i, n in enumerate(inputs)))
        self.norm, self.head = nn.BatchNorm1d(units), nn.Linear(units, LETTERS, bias=False)

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(frames / 2, batch, letters)``, for inputs of shape ``(batch, 1, bins, frames)``."""
        x = self.convolutions(spectrograms).flatten(1, 2).permute(2, 0, 1)
        x = self.recurrent(x.contiguous())
        return self.head(self.norm(x.flatten(0, 1)).view(x.shape))


def _loss(model: nn.Module, spectrograms: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    scores = functional.log_softmax(model(spectrograms), -1)
    batch, spoken = letters.shape
    return functional.ctc_loss(scores, letters, (scores.shape[0],) * batch, (spoken,) * batch, zero_infinity=True)


def _random_inputs(frames: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return spectrograms, shape ``(batch, 1, bins, frames)``, and letters, shape ``(batch, spoken)``."""
    spoken = frames * LETTERS_PER_S // FRAMES_PER_S
    return torch.randn(batch, 1, BINS, frames), torch.randint(1, LETTERS, (batch, spoken))


def deep_speech_2(*, reduced: bool = False, recurrent_layers: int = 5) -> Workload:
    """Return Deep Speech 2 for utterances of 12.69 s; reduced: 64 units, 8 channels, utterances of 2 s."""
    units, channels, seconds = (64, 8, 2.0) if reduced else (UNITS, 32, SECONDS)
    frames = round(seconds * FRAMES_PER_S)
    sgd = partial(torch.optim.SGD, lr=1e-3 if reduced else 3e-4, momentum=0.9, nesterov=True)
    return Workload(
        partial(DeepSpeech2, recurrent_layers, units, channels), partial(_random_inputs, frames),
        supervised_step_factory(sgd, _loss, clip_norm=400.0), batch=4, units_per_sample=frames / FRAMES_PER_S,
    )  # fmt: skip
