"""Reductions over rows: lanes run along a row, and a block has several rows."""
