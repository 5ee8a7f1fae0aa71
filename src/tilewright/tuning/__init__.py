"""The autotuner."""
