"""Poplar's codelets: the source is all there is; building and launching say what is missing."""
