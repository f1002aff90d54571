"""A directory store whose chunks pass through a codec, and a hand on its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from kvhub.testing.files import CodecFiles
from kvhub_nfs import DirectoryStore

# A machine that has other work to do is no fault.
settings.register_profile("kvhub", deadline=None)
settings.load_profile("kvhub")


@pytest.fixture
def files(tmp_path: Path):
    made = CodecFiles(tmp_path, lambda root, context: DirectoryStore(DirectoryStore.Config(root=root), context))
    yield made
    made.close()
