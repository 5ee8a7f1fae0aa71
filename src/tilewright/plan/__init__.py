"""The choice of the rung and config that run a problem, and why: tables of measurements first, a model of time for the
rest."""
