"""Construction: grows tiles by data reuse score, scales out over the device, and ranks programs by estimate."""

from roller.templates.common.options import ConstructOptions

__all__ = ["ConstructOptions"]
