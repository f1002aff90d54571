"""`kvhub bench`: what is measured is held against this machine, real chunks are untouched, and nothing stays behind."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from kvhub.bench import advice, bounds, plot
from kvhub.bench.members import Row
from kvhub.cli import main
from kvhub.config import load
from kvhub.plugins import Registry

FILE = """\
kvhub: 1
chunk_tokens: 16
stores:
  host: {{use: host, capacity: 4GiB}}
  pool: {{use: nfs/local, root: {root}}}
transports:
  wire: {{use: tcp, listen: "127.0.0.1:7"}}
roles:
  prefill: {{store: [host, wire], retrieve: [host, {{from: pool, promote: [host]}}]}}
  decode: {{store: [host, {{to: pool, when: {{uses: 2}}}}], retrieve: [host, wire, pool]}}
"""
QUICK = ["--seconds", "1s", "--token-bytes", "4KiB", "--prompt", "256"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "pool"
    (path / ("a" * 32) / "00" / "11").mkdir(parents=True)
    (path / ("a" * 32) / "namespace.json").write_text('{"model": "of an engine"}')
    (path / ("a" * 32) / "00" / "11" / f"0011{'2' * 60}.kv").write_bytes(b"an engine's chunk")
    return path


@pytest.fixture
def file(tmp_path: Path, root: Path) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(FILE.format(root=root))
    return str(path)


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".kvhub" not in path.parts
    }


def test_every_member_and_the_route_are_measured_and_nothing_stays(
    file: str, root: Path, tmp_path: Path, capsys: Any
) -> None:
    before = tree(root)
    said = tmp_path / "said.yaml"
    assert main(["bench", file, "--role", "decode", *QUICK, "--json", "--yaml", str(said)]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {(row["member"], row["what"]): row for row in told["rows"]}
    assert set(rows) == {
        ("host", "save"), ("host", "load"), ("host", "find"), ("pool", "save"), ("pool", "load"), ("pool", "find"),
        ("wire", "pull, mapped"), ("wire", "pull, sockets"), ("wire", "pull, hub to hub"),
        ("route of decode", "retrieve"),
    }  # fmt: skip
    assert all(row["rate"] > 0 and 0 < row["first"] <= row["worst"] for row in rows.values()), rows
    against = {key: row["against"] for key, row in rows.items() if row["bound"]}
    assert against == {
        ("host", "save"): "memcpy", ("host", "load"): "memcpy", ("pool", "save"): "plain files",
        ("pool", "load"): "plain files", ("wire", "pull, mapped"): "memcpy", ("wire", "pull, sockets"): "a bare socket",
    }  # fmt: skip
    assert all(
        row["part"] == pytest.approx(row["rate"] / row["bound"], abs=1e-4) for row in rows.values() if row["bound"]
    )
    assert rows["route of decode", "retrieve"]["note"].startswith("256 of 256 tokens")
    assert rows["wire", "pull, hub to hub"]["note"].startswith("256 of 256 tokens")
    assert tree(root) == before
    assert {path.name for path in root.iterdir()} <= {"a" * 32, ".kvhub"}
    # What it suggests is a part of a file that loads.
    assert said.read_text() == told["yaml"]
    whole = yaml.safe_load(Path(file).read_text())
    whole["roles"]["decode"] |= yaml.safe_load(told["yaml"])["roles"]["decode"]
    steps = {step.member: step for step in load(whole, Registry(), environ={}).roles["decode"].retrieve}
    assert list(steps) == ["host", "wire", "pool"]
    assert steps["pool"].faster == 1.0 and steps["wire"].faster == 0.0
    assert 0.1 <= steps["pool"].deadline <= 600


def test_a_terminal_is_shown_a_table_with_bars(file: str, capsys: Any) -> None:
    assert main(["bench", file, "--role", "prefill", *QUICK, "--prefill", "1000/s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["MEMBER", "WHAT", "SPEED", "ONE", "CHUNK", "LONGEST", "BOUND", "OF", "IT", "NOTE"]
    [load] = [line for line in lines if line.startswith("pool") and " load " in line]
    assert " plain files " in load and load.rstrip().endswith("#")
    assert any(line.startswith("limits.lookup: at least ") for line in lines)
    assert "      - {from: pool, promote: [host], deadline: " in "\n".join(lines)


def test_what_cannot_be_measured_says_why(file: str, root: Path, capsys: Any, tmp_path: Path) -> None:
    text = FILE.format(root=tmp_path / "nowhere").replace("[host, wire, pool]", "[host, pool]")
    Path(file).write_text(text.replace("store: [host, wire]", "store: [host]"))
    assert main(["bench", file, "--role", "decode", *QUICK, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    notes = {row["member"]: row["note"] for row in rows if row["note"]}
    assert notes["pool"].startswith(f"not measured: pool: root {tmp_path / 'nowhere'} does not exist")
    assert notes["route of decode"].startswith("not measured: pool: root ")
    assert any(row["member"] == "host" and row["rate"] for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "0s"], "--seconds: expected 1s to 1h, found 0s"),
        (["--token-bytes", "1GiB"], "--token-bytes: expected 1 to 64MiB, found 1GiB"),
        (["--prompt", "many"], "--prompt: expected a whole number from 1 on, found 'many'"),
        (["--prefill", "fast"], "--prefill: expected a number per second such as '500/s', found 'fast'"),
        ([], "roles: the file has 2; name one with --role"),
        (["--role", "both"], "roles: has no role 'both', which was asked for; known: prefill, decode"),
    ],
)
def test_wrong_words_are_told(file: str, capsys: Any, words: list[str], said: str) -> None:
    assert main(["bench", file, *words]) == 1
    assert f"  - {said}" in capsys.readouterr().err


# -- advice ----------------------------------------------------------------------------------------------------------

LOAD = Row("pool", "load", rate=1e9, first=0.02, worst=0.05)


def test_a_deadline_is_twice_what_a_prompt_takes_of_two_digits() -> None:
    assert advice.deadline(LOAD, 10**9) == pytest.approx(2.1)
    assert advice.deadline(attrs.evolve(LOAD, worst=0.001), 1) == advice.LEAST_DEADLINE
    assert advice.deadline(LOAD, 10**13) == 600.0


def test_the_threshold_is_where_loading_takes_as_long_as_computing() -> None:
    """64 tokens of 100 kB: 6.4 ms to load at 1 GB/s, 20 ms of waiting before them."""
    assert advice.fewest(LOAD, 64, 100_000, prefill=5000.0) == 4  # 12.8 ms to compute: 6.4 gained by each
    assert advice.fewest(LOAD, 64, 100_000, prefill=10_000.0) is None  # 6.4 ms to compute: nothing gained
    assert advice.fewest(LOAD, 64, 100_000, prefill=100.0) == 1


def test_the_fragment_word_for_word(file: str) -> None:
    config = load(file, Registry(), environ={})
    rows = [LOAD, Row("wire", "pull, sockets", rate=2e9, first=0.001, worst=0.002), Row("host", "load", rate=9e9)]
    said = advice.fragment(config, "decode", rows, token_bytes=100_000, prompt=8192, prefill=5000.0)
    assert (
        said
        == """\
# A prompt of 8192 tokens has 781.2 MiB of KV at 100000 bytes a token.
# wire: worth it while the engine computes fewer than 20000 prompt tokens per second
# pool: worth it while the engine computes fewer than 10000 prompt tokens per second
roles:
  decode:
    retrieve:
      - host
      - {from: wire, deadline: 830ms}
      - {from: pool, deadline: 1800ms, when: {faster: true, missing_chunks: 13}}
"""
    )
    slow = advice.fragment(config, "decode", [LOAD], token_bytes=100_000, prompt=8192, prefill=20_000.0)
    assert "fewer than 10000 prompt tokens per second, and yours computes 20000: leave it out of the route" in slow
    assert (
        advice.fragment(
            config, "decode", [Row("pool", "load", note="not measured")], token_bytes=1, prompt=1, prefill=0
        )
        == ""
    )


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_bounds_leave_no_file(tmp_path: Path) -> None:
    written, read = bounds.files(tmp_path, memoryview(bounds.payload(1 << 16)), 0.05)
    assert written > 0 and read > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        bounds.files(tmp_path / "nowhere", memoryview(b"x"), 0.05)
    assert bounds.loopback(0.05) > 0
    assert bounds.memory(memoryview(bytearray(1 << 16)), memoryview(bytearray(1 << 16)), 0.05) > 0


def test_the_payload_compresses_a_little_as_kv_does() -> None:
    import zlib

    data = bounds.payload(1 << 16)
    assert len(data) == 1 << 16
    assert 0.5 < len(zlib.compress(data)) / len(data) < 0.9


# -- what a route passes through -------------------------------------------------------------------------------------


def test_a_route_through_a_codec_is_measured_with_it_and_says_so(file: str, capsys: Any) -> None:
    text = Path(file).read_text().replace("stores:", "codecs:\n  small: {use: zstd, level: 1}\nstores:", 1)
    text = text.replace("{to: pool, when: {uses: 2}}", "{to: pool, codec: small}")
    Path(file).write_text(text)
    assert main(["bench", file, "--role", "decode", *QUICK, "--json"]) == 0
    rows = {(row["member"], row["what"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    route = rows["route of decode", "retrieve"]
    assert route["rate"] > 0 and route["note"].endswith("; pool through small")


def test_the_plot_has_a_bar_for_each_figure_and_a_line_for_each_bound(tmp_path: Path) -> None:
    rows = [attrs.evolve(LOAD, bound=2e9, against="a & b"), Row("pool", "find", rate=5.0), Row("x", "save", note="no")]
    tree = ElementTree.fromstring(plot.svg(rows))
    of = "{http://www.w3.org/2000/svg}"
    bars = [float(each.get("width", "")) for each in tree.iter(f"{of}rect") if each.get("class") == "rate"]
    lines = [float(each.get("x1", "")) for each in tree.iter(f"{of}line") if each.get("class") == "bound"]
    assert len(bars) == len(lines) == 1, "keys per second and what was not measured have no place on a scale of bytes"
    assert bars[0] == pytest.approx((lines[0] - plot.LEFT) / 2, abs=0.2), "half of its bound"
    assert "a & b" in "".join(tree.itertext())


def test_a_plot_is_written_and_one_that_cannot_be_is_told(file: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["bench", file, "--role", "prefill", *QUICK, "--plot", str(tmp_path / "one.svg")]) == 0
    assert "plain files" in (tmp_path / "one.svg").read_text()
    assert main(["bench", file, "--role", "prefill", *QUICK, "--plot", str(tmp_path / "no" / "one.svg")]) == 1
    assert "--plot: " in capsys.readouterr().err
