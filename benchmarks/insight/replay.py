"""``python -m benchmarks.insight replay FOLDER``: profiles of real devices, replayed with one latency and one gap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from roller.insight.step.replay import MOST_UNEXPLAINED, from_kineto, replay

#: Error of a replay that understands its profile.
LIMIT = 0.01


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of profiles: *.json, *.json.gz.")],
    joint: Annotated[str, typer.Option(help="Pattern of files that are the ranks of one job.")] = "",
) -> None:
    """Replay every profile of a folder, and exit with 1 where one that can be explained is off by more than 1 %."""
    files = sorted(f for f in folder.iterdir() if f.name.endswith((".json", ".json.gz")))
    if not files:
        raise typer.BadParameter(f"{folder}: expected profiles, got none.")
    groups = [[f] for f in files]
    if joint:
        groups.append(sorted(folder.glob(joint)))
    print("| profile | tasks | measured ms | replayed ms | error | unexplained | CPU s |")
    print("|---|---|---|---|---|---|---|")
    missed = 0
    for group in groups:
        began = time.process_time()
        found = replay(from_kineto(list(group) if len(group) > 1 else group[0]))
        spent = time.process_time() - began
        missed += found.is_explained and abs(found.error) > LIMIT
        said = "" if found.is_explained else " (not to be changed)"
        times = f"{found.measured_us / 1e3:.3f} | {found.replayed_us / 1e3:.3f} | {100 * found.error:+.2f} %"
        share = f"{100 * found.unexplained_share:.2f} %{said}"
        print(f"| {found.name} | {len(found.graph.tasks)} | {times} | {share} | {spent:.1f} |")
    print(f"Of {len(groups)} replays, {missed} are off by more than {100 * LIMIT:.0f} % with at most "
          f"{100 * MOST_UNEXPLAINED:.0f} % unexplained.")  # fmt: skip
    raise typer.Exit(1 if missed else 0)
