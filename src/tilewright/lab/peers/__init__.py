"""Peers beside the ladder: libraries and kernels of others, checked like a rung, timed in the same pairs."""
