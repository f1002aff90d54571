"""Housekeeping of shared pools: what `kvhub pool` does, for operators and never on a serving path.

`medium` is what a store offers for it; everything else here is written against that.
"""
