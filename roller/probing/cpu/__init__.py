"""Probes of a CPU."""

from roller.probing.probe import Probe

#: In the order they run: what others need comes first.
PROBES: tuple[Probe, ...] = ()
