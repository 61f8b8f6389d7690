"""What-if: activation recomputation, which repeats a block's forward pass before its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.memory_change_trace_options import MemoryChange
from roller.insight.whatif.recomputed_tasks import is_block_recomputed, tasks_not_yet_recomputed
from roller.insight.whatif.repeat_tasks import repeat_tasks
from roller.insight.whatif.task_selection import compute_tasks, compute_tasks_in_layers, tasks_by_step
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Recompute(WhatIf):
    """Repeat the forward pass of blocks before their backward pass.

    Parameters
    ----------
    blocks
        Patterns of layers; the layers matching each pattern form one block, of which only the input is saved.
    """

    blocks: tuple[str, ...]
    traced_with = (("blocks", "checkpoint"),)
    assumptions = ("A whole block runs again, although PyTorch stops at the last tensor that its backward reads.",)

    def memory_change(self) -> MemoryChange | None:
        """Return the trace options of the checkpointed step; ``None`` for patterns, which traces match differently."""
        return None if set("".join(self.blocks)) & set("*?[") else super().memory_change()

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if the backward pass already recomputes all blocks; otherwise ``""``."""
        return detect_already_applied_changes.recomputed_blocks_reason(graph, self.blocks)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph in which all blocks are recomputed."""
        made = graph
        for block in self.blocks:
            chosen = compute_tasks_in_layers(graph, block)
            if is_block_recomputed(graph, block):
                continue
            backward = tasks_by_step(graph, chosen & compute_tasks(graph, "backward"))
            for iteration, own in tasks_by_step(graph, chosen & compute_tasks(graph, "forward")).items():
                if iteration in backward:
                    once = tasks_not_yet_recomputed(graph, block, own)
                    made = repeat_tasks(made, once, ahead=backward[iteration][0])
        return made
