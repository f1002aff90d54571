"""`kvhub inspect s3://bucket/key` on a real server: ranges as they are read, and the file's own way to the bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3server import Server

from kvhub import chunkfile
from kvhub.cli import main
from kvhub.errors import KvhubError
from kvhub.testing.region import make_key, make_payload
from kvhub_s3 import client as client_module
from kvhub_s3 import kvhub_open_url

FILE = """\
kvhub: 1
stores:
  host: {{use: host, capacity: 1MiB}}
  far: {{use: s3, bucket: {bucket}, prefix: elsewhere, endpoint: "http://127.0.0.1:9", credentials: {{env: KVTEST}}}}
  pool: {{use: s3, bucket: {bucket}, prefix: {prefix}, endpoint: "{endpoint}", credentials: {{env: KVTEST}}}}
roles:
  both: {{store: [host, pool, far], retrieve: [host, pool, far]}}
"""


@pytest.fixture
def stored(open_pool: Callable[..., Any], objects: Any, bucket: str) -> tuple[str, bytes]:
    """The URL of a chunk that a store of ours put there, and its payload."""
    pool, payload = open_pool(slot_bytes=1 << 19, slots=2), make_payload("url", 300_000)
    pool.keep({make_key("url"): payload})
    [key] = [key for key in objects.listed() if key.endswith(".kv")]
    return f"s3://{bucket}/{key}", payload


@pytest.fixture
def file(tmp_path: Path, server: Server, bucket: str, prefix: str) -> str:
    path = tmp_path / "s3.yaml"
    path.write_text(FILE.format(bucket=bucket, prefix=prefix, endpoint=server.endpoint))
    return str(path)


def test_inspect_reads_a_chunk_through_the_store_of_the_file(stored: Any, file: str, capsys: Any) -> None:
    url, payload = stored
    assert main(["inspect", url, "--config", file, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["payload"], facts["payload_bytes"]) == ("whole", len(payload))
    assert facts["key"] == make_key("url").hex()


def test_of_a_header_nothing_else_is_fetched(stored: Any, file: str, capsys: Any, monkeypatch: Any) -> None:
    asked: list[tuple[int, int]] = []
    piece = client_module.Client.piece

    def noted(self: Any, key: str, start: int, most: int) -> bytes | None:
        asked.append((start, most))
        return piece(self, key, start, most)

    monkeypatch.setattr(client_module.Client, "piece", noted)
    assert main(["inspect", stored[0], "--config", file, "--header", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["payload"] == "not read"
    assert asked == [(0, chunkfile.HEADER_BYTES)]


def test_pieces_join_to_the_object_and_end_with_it(stored: Any, configured: Any, server: Server) -> None:
    url, payload = stored
    options = configured()
    given = {"use": "s3", "bucket": options.bucket, "endpoint": server.endpoint, "credentials": {"env": "KVTEST"}}
    with kvhub_open_url(url, {"stores": {"pool": given}}) as found:  # type: ignore[union-attr]
        first = found.read(chunkfile.HEADER_BYTES)
        rest = found.read(1000) + found.read()
        assert (len(first), rest) == (chunkfile.HEADER_BYTES, payload)
        assert found.read() == found.read(7) == b""


def test_what_is_not_there_and_what_cannot_be_reached_are_told_apart(
    stored: Any, file: str, bucket: str, prefix: str, capsys: Any
) -> None:
    assert main(["inspect", f"s3://{bucket}/{prefix}/none.kv", "--config", file]) == 1
    assert f"s3://{bucket}/{prefix}/none.kv: cannot be read: no such object" in capsys.readouterr().err
    assert main(["inspect", f"s3://{bucket}/elsewhere/none.kv", "--config", file]) == 1
    assert f"bucket {bucket} at http://127.0.0.1:9/{bucket} cannot be reached" in capsys.readouterr().err


def test_without_a_file_the_environment_tells_where(stored: Any, server: Server, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-nobody")
    assert main(["inspect", stored[0]]) == 1
    said = capsys.readouterr().err
    assert "does not permit this" in said and "a-secret-of-nobody" not in said


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://bucket/key?versionId=1"])
def test_urls_that_name_no_object(url: str) -> None:
    with pytest.raises(KvhubError, match="expected s3://BUCKET/KEY"):
        kvhub_open_url(url, {})


def test_other_schemes_are_others() -> None:
    assert kvhub_open_url("mem://bucket/key", {}) is None
