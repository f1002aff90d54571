"""The demo: `make demo`, or `PYTHONPATH=tests python -m demo.run` in the engine's environment."""
