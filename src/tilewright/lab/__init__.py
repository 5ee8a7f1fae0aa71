"""The laboratory: checking numbers, counting what kernels do, measuring on a GPU, and keeping records of it."""
