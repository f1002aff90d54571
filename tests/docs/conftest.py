"""Lets the tests here import the list of what is public, which the documentation site is made from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_site"))
