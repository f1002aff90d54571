"""A real S3 server for the session, a bucket of its own for every test, and a hub's view of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import attrs
import pytest
from s3server import ACCESS, SECRET, FaultProxy, NoServer, Server, running

from kvhub.options import build
from kvhub.testing.driver import Driver
from kvhub.testing.region import SLOT_BYTES, make_context
from kvhub.types import Key, MemberContext
from kvhub_s3 import BucketStore
from kvhub_s3.config import BucketConfig

VARIABLES = {"KVTEST_ACCESS_KEY_ID": ACCESS, "KVTEST_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    try:
        with running(tmp_path_factory.mktemp("s3-server")) as server:
            yield server
    except NoServer as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def bucket(server: Server) -> str:
    """One for all: a new one costs the server a second.  Tests have prefixes of their own."""
    return server.make_bucket()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid)):x}"


def options(endpoint: str, bucket: str, prefix: str, **more: object) -> BucketConfig:
    """A configuration as the hub would build it from YAML."""
    given = {"bucket": bucket, "prefix": prefix, "endpoint": endpoint, "credentials": {"env": "KVTEST"}} | more
    told: list[str] = []
    config = build(BucketConfig, given, "stores.pool", lambda path, why: told.append(f"{path}: {why}"))
    assert config is not None, told
    return config


@pytest.fixture
def configured(server: Server, bucket: str, prefix: str) -> Callable[..., BucketConfig]:
    """Options of this test's place in the bucket."""

    def configured(**more: object) -> BucketConfig:
        given = {"endpoint": server.endpoint, "bucket": bucket, "prefix": prefix} | more
        return options(**given)  # type: ignore[arg-type]

    return configured


class Objects:
    """The test's hand on the stored objects, without the plugin."""

    def __init__(self, server: Server, bucket: str, prefix: str) -> None:
        self._rest = server.rest(bucket)
        self._prefix = prefix

    def key(self, context: MemberContext, key: Key) -> str:
        name = key.hex()
        return f"{self._prefix}/v1/{name[:2]}/{context.namespace.hex()[:32]}/{name}.kv"

    def read(self, context: MemberContext, key: Key) -> bytes | None:
        answer = self._rest.ask("GET", self.key(context, key))
        return answer.body if answer.status == 200 else None

    def write(self, context: MemberContext, key: Key, data: bytes) -> None:
        assert self._rest.ask("PUT", self.key(context, key), body=data).status == 200

    def listed(self) -> list[str]:
        """Every key below the prefix."""
        text = self._rest.ask("GET", "", {"list-type": "2", "prefix": f"{self._prefix}/"}).body.decode()
        return sorted(re.findall(r"<Key>([^<]+)</Key>", text))


@pytest.fixture
def objects(server: Server, bucket: str, prefix: str) -> Objects:
    return Objects(server, bucket, prefix)


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server.port)
    proxy.start()
    yield proxy
    proxy.stop()


class Pool(Driver):
    """One hub's bucket store and its counters."""

    def __init__(
        self, config: BucketConfig, *, slots: int = 64, slot_bytes: int = SLOT_BYTES, namespace: str = "tests",
        writes: bool = True,
    ) -> None:  # fmt: skip
        self.counts: dict[str, int] = {}
        context = attrs.evolve(make_context("pool", namespace=namespace, report=self._report), writes=writes)
        super().__init__(BucketStore(config, context), slots=slots, slot_bytes=slot_bytes, patience=30.0)

    def _report(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = self.counts.get(name, 0) + count


@pytest.fixture
def open_pool(configured: Callable[..., BucketConfig]) -> Iterator[Callable[..., Pool]]:
    opened: list[Pool] = []

    def open_pool(
        *, attach: bool = True, slots: int = 64, slot_bytes: int = SLOT_BYTES, namespace: str = "tests",
        writes: bool = True, **more: object,
    ) -> Pool:  # fmt: skip
        opened.append(Pool(configured(**more), slots=slots, slot_bytes=slot_bytes, namespace=namespace, writes=writes))
        if attach:
            opened[-1].attach()
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


@pytest.fixture
def pool(open_pool: Callable[..., Pool]) -> Pool:
    return open_pool()
