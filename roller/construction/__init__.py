"""Construction: scale-up along the best data reuse score, scale-out over the device, ranking by estimate."""

from roller.templates.common.options import ConstructOptions

__all__ = ["ConstructOptions"]
