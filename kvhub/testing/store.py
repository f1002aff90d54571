"""`StoreContract`: what every store must do, as pytest laws."""

from __future__ import annotations

from kvhub.testing.store_basic import BasicLaws
from kvhub.testing.store_claims import ClaimLaws
from kvhub.testing.store_safety import SafetyLaws
from kvhub.testing.store_time import TimeLaws


class StoreContract(BasicLaws, SafetyLaws, TimeLaws, ClaimLaws):
    """Subclass this in a test file and define one fixture; every law then runs against your store.

        class TestMine(StoreContract):
            @pytest.fixture
            def member_factory(self, tmp_path):
                return lambda context: MyStore(MyStore.Config(root=str(tmp_path)), context)

    `member_factory`: callable(MemberContext) -> a new member, not attached, on the same medium at each call.
    `medium` (optional): a `Medium`, the test's hand on stored objects; without it the laws of damage are left out.
    `slots`, `slot_bytes`, `patience`, `excuses`: see `Stage` and `guard`.  Nothing else may be overridden.
    """
