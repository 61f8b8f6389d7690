"""CPU templates printed as TIR: tiled reductions, row reductions, streaming."""
