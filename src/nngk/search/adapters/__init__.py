"""Engines of other packages behind the protocol: one file per package, on one small base."""
