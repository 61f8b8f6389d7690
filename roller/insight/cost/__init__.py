"""Prices of operators on a device: the launches of each operator, and the time of each launch."""

from roller.insight.cost.operator_price import Price, Pricer, price_operator

__all__ = ["Price", "Pricer", "price_operator"]
