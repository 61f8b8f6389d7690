"""The what-ifs, one per file: the ten from Daydream (USENIX ATC 2020), and further ones."""

from __future__ import annotations

from roller.insight.whatif.what_if import WhatIf
from roller.insight.whatif.whatifs.add_layer import AddLayer
from roller.insight.whatif.whatifs.amp import AMP
from roller.insight.whatif.whatifs.batch_size import Batch
from roller.insight.whatif.whatifs.blueconnect import BlueConnect
from roller.insight.whatif.whatifs.cuda_graph import CudaGraph
from roller.insight.whatif.whatifs.ddp import DDP
from roller.insight.whatif.whatifs.dgc import DGC
from roller.insight.whatif.whatifs.foreach_optimizer import ForeachOptimizer
from roller.insight.whatif.whatifs.freeze_layers import Freeze
from roller.insight.whatif.whatifs.fuse_pointwise import FusePointwise
from roller.insight.whatif.whatifs.fused_optimizer import FusedOptimizer
from roller.insight.whatif.whatifs.gist import Gist
from roller.insight.whatif.whatifs.loader_workers import LoaderWorkers
from roller.insight.whatif.whatifs.offload import Offload
from roller.insight.whatif.whatifs.other_device import Device
from roller.insight.whatif.whatifs.other_network import OtherNetwork
from roller.insight.whatif.whatifs.other_optimizer import OtherOptimizer
from roller.insight.whatif.whatifs.parameter_server import ParameterServer
from roller.insight.whatif.whatifs.recompute import Recompute
from roller.insight.whatif.whatifs.remove_layer import RemoveLayer
from roller.insight.whatif.whatifs.restructured_norm import RestructuredNorm
from roller.insight.whatif.whatifs.substitute_layers import Substitute
from roller.insight.whatif.whatifs.zero_time import ZeroTime

#: Maps the name of each what-if in scenarios to its class; Daydream's ten come first.
WHATIFS: dict[str, type[WhatIf]] = {
    "amp": AMP, "fused-optimizer": FusedOptimizer, "restructured-norm": RestructuredNorm, "ddp": DDP,
    "parameter-server": ParameterServer, "blueconnect": BlueConnect, "substitute": Substitute, "offload": Offload,
    "gist": Gist, "dgc": DGC,
    "loader-workers": LoaderWorkers, "remove-layer": RemoveLayer, "add-layer": AddLayer, "batch": Batch,
    "freeze": Freeze, "other-optimizer": OtherOptimizer, "foreach-optimizer": ForeachOptimizer,
    "recompute": Recompute, "fuse-pointwise": FusePointwise, "cuda-graph": CudaGraph, "device": Device,
    "other-network": OtherNetwork, "zero-time": ZeroTime,
}  # fmt: skip

__all__ = [
    "AMP", "DDP", "DGC", "WHATIFS", "AddLayer", "Batch", "BlueConnect", "CudaGraph", "Device", "ForeachOptimizer",
    "Freeze", "FusePointwise", "FusedOptimizer", "Gist", "LoaderWorkers", "Offload", "OtherNetwork",
    "OtherOptimizer", "ParameterServer", "Recompute", "RemoveLayer", "RestructuredNorm", "Substitute",
    "ZeroTime",
]  # fmt: skip
