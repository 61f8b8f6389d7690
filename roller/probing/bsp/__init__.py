"""Probes of bulk-synchronous devices: none, because nothing here runs a kernel on one."""

from roller.probing.probe import Probe

PROBES: tuple[Probe, ...] = ()
