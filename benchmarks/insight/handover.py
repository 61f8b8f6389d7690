"""``python -m benchmarks.insight handover``: what a batch of a loader's worker costs the process that trains."""

from __future__ import annotations

import time
from statistics import median

_PAGE_BYTES, _BATCHES, _REST_S = 4096, 24, 0.2


def main() -> None:
    """Measure three sizes of batches of two tensors: the fetch of a ready batch, the first touch, and its release.

    The numbers of ``roller/insight/cost/host_costs.yaml`` are measured here. The smallest batch, which has
    next to no pages, tells what a batch costs apart from its pages.
    """
    print("| batch MB | fetch us | first copy us | copy again us | release us | fault us/page | release us/page |")
    print("|---|---|---|---|---|---|---|")
    for size in (1, 1204224, 4816896, 9633792):
        fetch, first, again, release = _measured(size)
        pages = size * 4 / _PAGE_BYTES
        per_page = f"{(first - again) / pages:.2f} | {release / pages:.2f}" if pages > 1 else "- | -"
        print(f"| {size * 4 / 1e6:.1f} | {fetch:.0f} | {first:.0f} | {again:.0f} | {release:.0f} | {per_page} |")


def _measured(size: int) -> tuple[float, float, float, float]:
    import torch

    class Batches(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return _BATCHES

        def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones(size), torch.zeros(32, dtype=torch.long)

    loader = iter(torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=1, prefetch_factor=2))
    times: tuple[list[float], ...] = ([], [], [], [])
    into = torch.zeros(size)
    for _ in range(_BATCHES - 2):
        time.sleep(_REST_S)  # the next batch is ready by then
        marks = [time.perf_counter()]
        batch = next(loader)
        marks.append(time.perf_counter())
        into.copy_(batch[0])
        marks.append(time.perf_counter())
        into.copy_(batch[0])
        marks.append(time.perf_counter())
        del batch
        marks.append(time.perf_counter())
        for own, began, ended in zip(times, marks, marks[1:], strict=False):
            own.append(1e6 * (ended - began))
    fetch, first, again, release = (median(own) for own in times)
    return fetch, first, again, release
