"""`WireFaults`: what a transport made of `kvhub.wire` must withstand, as pytest laws."""

from __future__ import annotations

from kvhub.testing.wire_forgery import ForgeryLaws
from kvhub.testing.wire_lies import LieLaws
from kvhub.testing.wire_states import StateLaws
from kvhub.testing.wire_time import TimeLaws


class WireFaults(StateLaws, LieLaws, ForgeryLaws, TimeLaws):
    """Subclass this for every way that payloads of your fabric can move; every law then runs between real processes.

        class TestMyMessages(WireFaults):
            use = "mine"                      # the plugin's name, or "package:Class"
            path = "message"                  # message, put or mapped
            options = {"devices": "lo"}       # more options of every hub

    `use`, `path`, `options`, `tls`, `moments`, `fenced`, `patience`, `excuses`: see `Wired`, `StateLaws` and `guard`.
    Nothing else may be overridden.
    """
