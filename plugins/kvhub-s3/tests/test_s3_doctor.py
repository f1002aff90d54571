"""`kvhub doctor` and `kvhub bench` on a real server: nothing fails, and nothing is left in the bucket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from s3server import Server

from kvhub.cli import main

FILE = """\
kvhub: 1
chunk_tokens: 16
stores:
  pool: {{use: s3, bucket: {bucket}, prefix: {prefix}, endpoint: "{endpoint}", credentials: {{env: KVTEST}}}}
limits: {{staging: 64MiB, lookup: 5s}}
roles:
  both: {{store: [pool], retrieve: [pool]}}
"""


@pytest.fixture
def file(tmp_path: Path, server: Server, bucket: str, prefix: str) -> str:
    path = tmp_path / "s3.yaml"
    path.write_text(FILE.format(bucket=bucket, prefix=prefix, endpoint=server.endpoint))
    return str(path)


def test_the_doctor_finds_server_clock_and_round_trip_well(file: str, objects: Any, capsys: Any) -> None:
    assert main(["doctor", file, "--json"]) in (0, 1), "an engine may be missing here"
    told = json.loads(capsys.readouterr().out)["findings"]
    found = {each["what"]: (each["grade"], each["found"]) for each in told if each["where"] == "stores.pool"}
    assert {what: grade for what, (grade, _) in found.items()} == dict.fromkeys(
        ("start", "server", "clock", "round trip"), "pass"
    )
    assert found["clock"][1].startswith("this machine's is ")
    assert "a chunk was saved, loaded and removed" in found["round trip"][1]
    assert objects.listed() == []


def test_the_bench_measures_a_bucket_and_cleans_up(file: str, objects: Any, capsys: Any) -> None:
    words = ["--seconds", "2s", "--token-bytes", "4KiB", "--prompt", "64"]
    assert main(["bench", file, "--role", "both", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rates = {(row["member"], row["what"]): row["rate"] for row in told["rows"]}
    assert set(rates) == {
        ("pool", "save"), ("pool", "load"), ("pool", "find"), ("route of both", "retrieve"),
    }  # fmt: skip
    assert all(rates.values()), told
    held = {row["what"]: row["against"] for row in told["rows"] if row["bound"]}
    assert held == {"save": "plain requests", "load": "plain requests"}
    assert objects.listed() == []
