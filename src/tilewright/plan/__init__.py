"""Which rung and config run a problem, and why: tables of measurements first, a model of time for the rest."""
