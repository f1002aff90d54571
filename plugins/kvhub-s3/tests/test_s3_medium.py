"""The bucket as housekeeping sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from s3server import SECRET, FaultProxy, Server

from kvhub.errors import KvhubError
from kvhub.pool.medium import Leftover, Medium
from kvhub.testing.medium import NAMESPACE, MediumContract, chunk, name_of, space_of
from kvhub_s3 import BucketStore, leases
from kvhub_s3.config import BucketConfig
from kvhub_s3.download import Found
from kvhub_s3.medium import LOOK_ONE_BY_ONE

HOME = space_of(NAMESPACE).id


class TestBucket(MediumContract):
    @pytest.fixture
    def medium_factory(self, configured: Callable[..., BucketConfig], environment: None) -> Callable[[], Medium]:
        return lambda: BucketStore.medium(configured())

    def test_what_is_no_chunk_is_left_alone(self, house: Medium, server: Server, bucket: str, prefix: str) -> None:
        [name] = self.fill(house, 1)
        for odd in ("readme", f"{name}.kv.bak", f"{name.upper()}.kv", f"deeper/{name_of(1)}.kv"):
            assert server.rest(bucket).ask("PUT", f"{prefix}/v1/{name[:2]}/{HOME}/{odd}", body=b"?").status == 200
        assert [entry.name for entry in house.entries(HOME, name[:2])] == [name]

    def test_a_space_without_a_text_is_told(self, house: Medium) -> None:
        [name] = self.fill(house, 1)
        assert house.put("f" * 32, name, memoryview(chunk(name)))
        assert [(space.id, space.text is None) for space in house.spaces()] == [(HOME, False), ("f" * 32, True)]

    def test_many_are_removed_in_few_requests(
        self, house: Medium, proxy: FaultProxy, configured: Callable[..., BucketConfig]
    ) -> None:
        names = self.fill(house, 3 * LOOK_ONE_BY_ONE, shard="3c", length=10)
        entries = [*house.entries(HOME, "3c")]
        with BucketStore.medium(configured(endpoint=proxy.endpoint)) as medium:
            proxy.seen.clear()
            assert [entry.name for entry in medium.remove(HOME, entries[2:-2])] == names[2:-2]
            assert len(proxy.seen) == 2, [request[:2] for request in proxy.seen]
        assert [entry.name for entry in house.entries(HOME, "3c")] == names[:2] + names[-2:]

    def test_a_server_without_bulk_removal_is_asked_one_by_one(
        self, house: Medium, proxy: FaultProxy, configured: Callable[..., BucketConfig]
    ) -> None:
        self.fill(house, 3, shard="3c", length=10)
        entries = [*house.entries(HOME, "3c")]
        with (
            BucketStore.medium(configured(endpoint=proxy.endpoint)) as medium,
            proxy.failing("answer", methods=("POST",), status=501, code="NotImplemented"),
        ):
            assert medium.remove(HOME, entries) == entries
        assert [*house.entries(HOME, "3c")] == []

    def test_C11_unfinished_uploads_are_left_over(
        self, house: Medium, server: Server, bucket: str, prefix: str
    ) -> None:
        key = f"{prefix}/v1/aa/{HOME}/{name_of(0, 'aa')}.kv"
        begun = server.rest(bucket).ask("POST", key, {"uploads": ""})
        assert begun.status == 200
        server.rest(bucket).ask("PUT", f"{prefix}/v1/scratch/of-a-dead-hub", body=b"x")
        assert list(house.leftovers(3600.0)) == []
        found = list(house.leftovers(-3600.0))
        assert [left.name.split("?")[0] for left in found] == [key, f"{prefix}/v1/scratch/of-a-dead-hub"]
        assert not house.forget(HOME), "somebody is writing there"
        assert house.clear(found) == 2 and house.clear(found) == 0
        assert list(house.leftovers(-3600.0)) == []
        assert house.forget(HOME)

    def test_a_listing_that_broke_off_goes_on_and_never_ends_early(
        self, house: Medium, proxy: FaultProxy, configured: Callable[..., BucketConfig]
    ) -> None:
        names = self.fill(house, 5, shard="3c", length=10)
        with BucketStore.medium(configured(endpoint=proxy.endpoint)) as medium:
            for kind in ("reset", "cut", "answer"):
                with proxy.failing(kind, methods=("GET",), times=2) as fault:
                    assert [entry.name for entry in medium.entries(HOME, "3c")] == names
                assert fault.hits == 2

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            ({"kind": "answer", "status": 403, "code": "AccessDenied"}, PermissionError),
            ({"kind": "answer", "status": 500, "code": "InternalError"}, OSError),
            ({"kind": "hang"}, TimeoutError),
            ({"kind": "reset"}, ConnectionError),
        ],
        ids=lambda value: value["kind"] if isinstance(value, dict) else value.__name__,
    )
    def test_what_the_bucket_does_is_an_oserror(
        self, proxy: FaultProxy, configured: Callable[..., BucketConfig], fault: dict[str, object], kind: type[OSError]
    ) -> None:
        with BucketStore.medium(configured(endpoint=proxy.endpoint, stall_timeout=0.3)) as medium:
            calls: list[Callable[[], object]] = [
                lambda: list(medium.spaces()),
                lambda: list(medium.entries(HOME, "00")),
                lambda: medium.read(HOME, name_of(0), memoryview(bytearray(10))),
                lambda: medium.note("x"),
                lambda: medium.claim("x", "me", 1.0),
            ]
            medium.now()
            with proxy.failing(**fault):  # type: ignore[arg-type]
                for call in calls:
                    with pytest.raises(kind, match="s3://") as caught:
                        call()
                    assert SECRET not in str(caught.value)
            assert medium.clear([Leftover("absent", 0, 0.0)]) == 0


class Forgetful:
    """The calls of a client on a server that ignores conditions, on a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before_put: Callable[[], object] = lambda: None

    def small(self, key: str, most: int) -> tuple[bytes, Found] | None:
        data = self.objects.get(key)
        return None if data is None else (data, Found(len(data), "", 1000))

    def put(self, key: str, data: bytes, create: bool = False) -> bool:
        before, self.before_put = self.before_put, lambda: None
        before()
        self.objects[key] = data
        return True

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


def test_a_lease_where_conditions_are_ignored_goes_to_the_last_writer() -> None:
    client = Forgetful()
    assert leases.claim(client, "sweep", "a", 60.0, 1000.0)  # type: ignore[arg-type]
    assert not leases.claim(client, "sweep", "b", 60.0, 1001.0)  # type: ignore[arg-type]
    assert leases.claim(client, "sweep", "b", 60.0, 1061.0)  # type: ignore[arg-type]
    client.objects.clear()
    later: list[bool] = []
    client.before_put = lambda: later.append(leases.claim(client, "sweep", "b", 60.0, 1000.0))  # type: ignore[arg-type]
    assert leases.claim(client, "sweep", "a", 60.0, 1000.0)  # type: ignore[arg-type]
    assert not leases.claim(client, "sweep", "b", 60.0, 1000.0)  # type: ignore[arg-type]
    assert later == [True], "two at once are possible, and harmless"


def test_a_bucket_that_is_not_there_is_refused(configured: Callable[..., BucketConfig]) -> None:
    with pytest.raises(KvhubError, match="does not exist; create it or name another"):
        BucketStore.medium(configured(bucket="no-such-bucket"))
