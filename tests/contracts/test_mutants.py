"""The contracts catch every seeded fault, each by the law that is meant for it, and pass what is correct."""

import mutants
import pytest
from store_mutants import STORE_FAULTS
from transport_mutants import TRANSPORT_FAULTS


@pytest.mark.timeout(600)  # some hundred processes
def test_every_fault_is_caught_by_its_law():
    assert len(STORE_FAULTS) >= 14 and len(TRANSPORT_FAULTS) >= 8
    assert not mutants.survivors(short=True)
