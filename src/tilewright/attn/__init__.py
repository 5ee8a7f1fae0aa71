"""Attention: the family's problem, rungs, stages and explanation. (tilewright.attention is the function.)"""
