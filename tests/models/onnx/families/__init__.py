"""Families of random nodes, harder than those of :mod:`tests.models.onnx.random_operators`: one file each."""
