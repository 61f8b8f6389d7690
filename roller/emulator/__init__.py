"""Runs emitted CUDA C on the CPU: the proof of a kernel where there is no GPU.

``translate`` rewrites the source into C++, ``library`` builds it with g++ and keeps it by content, ``cxx/``
holds the runtime: threads as fibers in a chosen order, checked pointers, warps, half precision, matrix units.
"""

from roller.emulator.emulate import ORDERS, Emulated, emulate
from roller.emulator.proof import Proof
from roller.emulator.prove import prove

__all__ = ["ORDERS", "Emulated", "Proof", "emulate", "prove"]
