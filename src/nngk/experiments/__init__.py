"""Experiments: users of the library like any other. Nothing in the library imports them."""
