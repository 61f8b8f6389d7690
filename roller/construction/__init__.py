"""Construction: scale-up along the best data reuse score, scale-out over the device, ranking by estimate."""

from roller.construction.options import ConstructOptions

__all__ = ["ConstructOptions"]
