"""The GPU model against published times of library kernels on several devices."""
