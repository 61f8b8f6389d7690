"""HTML reports of kernels, models and benchmark runs."""
