"""Runs emitted CUDA C on the CPU to prove a kernel correct without a GPU.

``translate`` rewrites the source as C++, ``build_library`` builds it with g++ and caches it by content, and ``cxx/`` is
the runtime: threads as fibers in a chosen order, checked pointers, warps, half precision, and matrix units.
"""

from roller.emulator.emulate import ORDERS, EmulatedArtifact, emulate
from roller.emulator.proof_result import Proof
from roller.emulator.prove import prove

__all__ = ["ORDERS", "EmulatedArtifact", "Proof", "emulate", "prove"]
