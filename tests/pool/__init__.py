"""Housekeeping of shared pools, on directories."""
