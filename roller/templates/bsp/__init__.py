"""Templates for bulk-synchronous devices: every unit has a scratchpad, and compute phases alternate with exchanges."""

from roller.templates.bsp.common.price import BOTTLENECKS
from roller.templates.bsp.price_terms import explained
from roller.templates.bsp.registry import TEMPLATES, lower_bound_s, price, price_programs, programs_of

__all__ = ["BOTTLENECKS", "TEMPLATES", "explained", "lower_bound_s", "price", "price_programs", "programs_of"]
