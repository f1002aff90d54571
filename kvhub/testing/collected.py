"""What pytest collects for `--kvhub-use`: the contract classes of installed members, and no test of its own."""

from kvhub.testing.pytest_plugin import current

globals().update(current)
