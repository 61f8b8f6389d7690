"""The price of an operator on a device: its mapping to launches, and what each launch takes."""

from roller.insight.cost.operator_price import Price, Pricer, price_operator

__all__ = ["Price", "Pricer", "price_operator"]
