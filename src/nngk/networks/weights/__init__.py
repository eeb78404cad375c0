"""Weights: read from files and packages, given the right names, put into networks."""
