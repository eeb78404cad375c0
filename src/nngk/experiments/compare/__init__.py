"""Losses compared under the same conditions."""
