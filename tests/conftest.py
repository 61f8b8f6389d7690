"""Shared set-up: hypothesis draws the same examples in every run, and a slow machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("roller", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("roller")
