"""`EngineContract`: what every engine adapter must do, as pytest laws."""

from __future__ import annotations

from kvhub.testing.engine_basic import BasicLaws


class EngineContract(BasicLaws):
    """x"""
