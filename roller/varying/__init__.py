"""Kernels for a size that varies from call to call: few of them cover its range, and none is compiled for a new one."""
