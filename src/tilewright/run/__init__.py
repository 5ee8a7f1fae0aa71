"""The way a plan runs: launches over a workspace, placed, ordered and remembered."""
