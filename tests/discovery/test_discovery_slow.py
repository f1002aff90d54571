"""An import that does not end is told while it hangs: nothing can end it from outside."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from core.conftest import dists
from discovery.faulty import GOOD

from kvhub import plugins
from kvhub.plugins import Registry

__all__ = ["dists"]

# It goes on as soon as the warning has been given, so no time is assumed.
HANGS = """
import time
import structlog
end = time.monotonic() + 20
while not getattr(structlog, "kvhub_test_warned", False) and time.monotonic() < end:
    time.sleep(0.01)
"""


def test_an_import_that_hangs_is_told_by_the_plugin_s_name(dists: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "HANGING_IMPORT", 0.05)
    monkeypatch.setattr(structlog, "kvhub_test_warned", False, raising=False)
    told: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **fields: Any) -> None:
            told.append({"event": event, **fields})
            structlog.kvhub_test_warned = True  # type: ignore[attr-defined]

        def info(self, event: str, **fields: Any) -> None:
            told.append({"event": event, "plugin": fields["plugin"]})

    monkeypatch.setattr(structlog, "get_logger", lambda name: Log())
    dists.add("hangs-kv", "hangs", HANGS + GOOD)
    assert Registry().store("hangs")
    assert told[0] == {"event": "plugin.importing", "plugin": "hangs", "seconds": 0.05}
