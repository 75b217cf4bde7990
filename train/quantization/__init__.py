"""Networks computed on coarser grids while they are trained: integers' levels, 16-bit floats, narrow weights."""
