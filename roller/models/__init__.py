"""Models: read, lowered to programs, compiled as one batch of kernels, run from a plan. ``compile.py`` names them."""
