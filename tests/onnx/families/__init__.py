"""Families of random nodes, harder than those of :mod:`tests.onnx.random_operators`: one file each."""
