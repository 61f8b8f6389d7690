"""Probes of bulk-synchronous devices: none, because no such device runs kernels here."""

from roller.probing.probe_header import Probe

PROBES: tuple[Probe, ...] = ()
