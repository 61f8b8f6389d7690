"""A new accelerator is one file of numbers, no code: what would it be worth, before it exists.

A V100 with twice the scratchpad and half the memory bandwidth, as a file of its own. Construction, prediction and code
need nothing else; ``roller devices --show FILE`` checks such a file, ``roller probe`` measures one of a machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml

import roller
from roller.hardware.reader import spec_folder

OPERATORS = (
    roller.ops.matmul(4096, 4096, 4096),
    roller.ops.conv2d(n=32, c=128, h=28, w=28, f=128, kh=3, kw=3, padding=1),
    roller.ops.elementwise("relu", (1 << 24,)),
)


def main() -> None:
    """Run the example."""
    with tempfile.TemporaryDirectory() as folder:
        dream = roller.load_spec(written(Path(folder, "dream.yaml")))
    for expr in OPERATORS:
        (today,) = roller.construct(expr, device="v100", top_k=1)
        (then,) = roller.construct(expr, device=dream, top_k=1)
        print(f"{expr.name}: v100: {today.estimate}; dream: {then.estimate}")
        print(f"  v100:  {today.program}\n  dream: {then.program}")
    first = roller.sensitivity(OPERATORS[0], dream).enlarge
    if first is not None and first.best is not None:
        change = f"{first.field}={first.best.value:g} is {first.best.percent:+.2f} % of its time"
        print(f"{OPERATORS[0].name} on a dream: {change}")


def written(path: Path) -> Path:
    """Write the specification: every number says where it is from, and these nobody has measured."""
    device = yaml.safe_load((spec_folder() / "v100.yaml").read_text(encoding="utf-8"))
    device |= {"name": "dream", "description": "a V100 with twice the scratchpad and half the bandwidth"}
    layers = {layer["name"]: layer for layer in device["memory_layers"]}
    layers["shared"] |= {"capacity_bytes": {"assumed": 196608}, "usable_bytes": {"assumed": 98304}}
    layers["global"] |= {"bandwidth_bytes_per_s": {"assumed": 4.5e11}}
    device["limits"]["shared_bytes_per_block"] = {"assumed": 98304}
    path.write_text(yaml.safe_dump(device, sort_keys=False), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
