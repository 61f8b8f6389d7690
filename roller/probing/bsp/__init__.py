"""Probes of bulk-synchronous devices: none, because no such device runs kernels here."""

from roller.probing.probe import Probe

PROBES: tuple[Probe, ...] = ()
