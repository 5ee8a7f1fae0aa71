"""The rungs of the GEMM ladders, as data."""
