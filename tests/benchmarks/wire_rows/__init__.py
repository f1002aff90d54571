"""The rows of `make bench-wire`, a module each; `wire.py` beside this folder puts them into one table."""
