"""Epilogues: Python expressions over a product's sum, traced once into device code inside the kernel."""
