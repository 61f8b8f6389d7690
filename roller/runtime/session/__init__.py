"""Libraries and interfaces that sessions on a processor need beside kernels."""
