"""Products: the family's problem, rungs, stages and explanation."""
