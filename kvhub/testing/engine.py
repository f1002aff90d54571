"""`EngineContract`: what every engine adapter must do, as pytest laws."""

from __future__ import annotations

from kvhub.testing.engine_basic import BasicLaws
from kvhub.testing.engine_flow import FlowLaws
from kvhub.testing.engine_life import LifeLaws
from kvhub.testing.engine_safety import SafetyLaws
from kvhub.testing.engine_stream import StreamLaws


class EngineContract(BasicLaws, SafetyLaws, LifeLaws, FlowLaws, StreamLaws):
    """Subclass this in a test file and define three fixtures; every law then runs on your adapter's engine.

        class TestMine(EngineContract):
            @pytest.fixture
            def driver_factory(self):
                return lambda config, role, setup: MyDriver(config, role, setup)

            @pytest.fixture
            def pool(self, tmp_path):
                return {"use": "nfs", "root": str(tmp_path)}

            @pytest.fixture
            def wire(self):
                return {"use": "ucx", "listen": "127.0.0.1:0"}

    `driver_factory`: callable(config, role, EngineSetup) -> a started `EngineDriver`; it raises `Unable` for a set-up
    that the engine does not have, and the law is left out by name.  Without a configuration: the engine without kvhub.
    `pool`: options of a persistent, shared store, empty at the start of each law.  `wire`: options of a transport.
    `block`, `chunk`, `vocabulary`, `memory`, `patience`, `excuses`: see `EngineStage` and `guard`.  Nothing else may be
    overridden.
    """
