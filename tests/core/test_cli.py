"""The commands as operators run them: in this process for their words, in real processes for what they import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvhub import __version__, chunkfile
from kvhub.cli import main

GOOD = """\
kvhub: 1
stores:
  host: {use: host, capacity: 1GiB}
roles:
  both: {store: [host], retrieve: [host]}
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("KVHUB_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "one.yaml"
    path.write_text(GOOD)
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"kvhub {__version__}\n"


def test_a_wrong_command_line_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["chekc"], ["check", "a", "--role", "decoder"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    capsys.readouterr()


def test_check_prints_values_and_origins(file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVHUB_LIMITS__LEASE", "5s")
    assert main(["check", str(file), "--role", "both"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["OPTION", "VALUE", "FROM"] in lines
    assert ["stores.host.capacity", "1073741824", "one.yaml:3"] in lines
    assert ["limits.lease", "5.0", "environment", "KVHUB_LIMITS__LEASE"] in lines
    assert ["chunk_tokens", "64", "default"] in lines
    assert ["both:", "retrieves", "from", "host;", "stores", "to", "host"] in lines


def test_E03_check_says_when_the_environment_changes_keys(file: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("KVHUB_CHUNK_TOKENS", "512")
    assert main(["check", str(file)]) == 0
    assert "warning: chunk_tokens: set by the environment, was 64 (default)" in capsys.readouterr().err


def test_check_as_json(file: Path, capsys: Any) -> None:
    assert main(["check", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["values"]["stores.host.capacity"] == {"value": 1 << 30, "origin": "one.yaml:3"}
    assert report["values"]["roles.both.write_back"]["value"] == ["prompt", "generated"]


def test_check_prints_every_problem_and_fails(file: Path, capsys: Any) -> None:
    file.write_text(GOOD.replace("capacity", "capcity").replace("retrieve", "retreive"))
    assert main(["check", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "did you mean 'retrieve'? (one.yaml:5)" in said.err
    assert "did you mean 'capacity'? (one.yaml:3)" in said.err
    assert main(["check", str(file), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3


def test_E02_the_file_may_come_from_the_environment(file: Path, capsys: Any, monkeypatch: Any) -> None:
    assert main(["check"]) == 1
    assert "set KVHUB_CONFIG" in capsys.readouterr().err
    monkeypatch.setenv("KVHUB_CONFIG", str(file))
    assert main(["check"]) == 0
    monkeypatch.setenv("KVHUB_CONFIG", "/nope")
    capsys.readouterr()
    assert main(["check"]) == 1
    assert capsys.readouterr().err == "/nope: 1 problem\n  - cannot be read: No such file or directory\n"


def test_E06_plugins_lists_the_broken_with_their_reason(dists: Any, capsys: Any) -> None:
    dists.add("good-kv", "good")
    dists.add("type-kv", "typeerror", "raise TypeError('protobuf clash')")
    dists.add("exit-kv", "exits", "raise SystemExit(3)")
    dists.add("gone-kv", "gone", write=False, module="module_that_is_gone")
    dists.add("old-kv", "old", requires=["kvhub>=7"])
    dists.add("dup-a", "same")
    dists.add("dup-b", "same")
    assert main(["plugins"]) == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert lines["good"] == "good good-kv 1.0 store good"
    assert lines["host"] == f"host kvhub {__version__} store host"
    assert (
        "BROKEN: plugin 'typeerror' (type-kv 1.0) cannot be imported: TypeError: protobuf clash" in lines["typeerror"]
    )
    assert "SystemExit: 3" in lines["exits"]
    assert "module_that_is_gone" in lines["gone"]
    assert "needs kvhub >=7" in lines["old"]
    assert "provided by dup-a 1.0 and by dup-b 1.0" in lines["same"]
    assert main(["plugins", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["good"]["stores"] == ["good"]
    assert "broken" in rows["exits"]


def test_what_a_plugin_prints_does_not_spoil_our_output(dists: Any, file: Path, capsys: Any) -> None:
    dists.add("loud-kv", "loud", "print('hello from a plugin')\nraise OSError")
    assert main(["plugins", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)
    assert "hello from a plugin" in said.err


def test_engines_show_their_tested_range(dists: Any, capsys: Any) -> None:
    source = (
        "from kvhub import hookimpl\nfrom kvhub.engine import Engine\n"
        "class A(Engine):\n    name, distribution, versions = 'a', 'kvhub', '<0.1'\n"
        "class B(Engine):\n    name, distribution, versions = 'b', 'not-there-at-all', '>=1'\n"
        "@hookimpl\ndef kvhub_register_engines(): return (A, B)\n"
    )
    dists.add("eng", "eng", source)
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert f"engine a (tested <0.1, installed {__version__}, outside of that)" in out
    assert "engine b (tested >=1, not installed)" in out


BLOCK = """
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'vllm', 'sglang', 'numpy', 'boto3', 'ucxx', 'libucx', 'triton'):
            raise RuntimeError('imported ' + name)
sys.meta_path.insert(0, Wall())
from kvhub.cli import main
status = main(sys.argv[1:])
assert not any(name.startswith('kvhub_') or name.startswith('fake_plugin') for name in sys.modules), sys.modules
sys.exit(status)
"""


@pytest.mark.parametrize("command", [["--help"], ["check", "FILE"], ["check", "FILE", "--role", "both", "--json"]])
def test_E14_no_engine_and_no_unused_plugin_is_imported(dists: Any, file: Path, command: list[str]) -> None:
    dists.add("bad-kv", "bad", "import os\nos._exit(9)")
    done = dists.run("-c", BLOCK, *[str(file) if word == "FILE" else word for word in command])
    assert done.returncode == 0, done.stderr


def test_E06_a_selected_broken_plugin_fails_the_command_with_its_cause(dists: Any, file: Path) -> None:
    dists.add("bad-kv", "bad", "raise TypeError('protobuf clash')")
    file.write_text(GOOD.replace("{use: host, capacity: 1GiB}", "{use: bad}"))
    done = dists.run("-m", "kvhub.cli", "check", str(file))
    assert done.returncode == 1
    assert "stores.host.use: plugin 'bad' (bad-kv 1.0) cannot be imported: TypeError: protobuf clash" in done.stderr
    assert "Traceback" not in done.stderr


def test_inspect_shows_a_chunk_and_finds_its_damage(tmp_path: Path, capsys: Any) -> None:
    payload = bytes(range(256)) * 16
    chunk = chunkfile.pack(b"k" * 32, b"n" * 32, payload, generated=3, writer=b"hub-1") + payload
    path = tmp_path / "a.kv"
    path.write_bytes(chunk)
    assert main(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["payload"], facts["generated_tokens"], facts["writer"]) == ("whole", 3, "hub-1")
    assert facts["key"] == (b"k" * 32).hex()
    for damaged, said in (
        (chunk[:-1], "damaged: length"),
        (chunk[:-1] + bytes([chunk[-1] ^ 1]), "damaged: checksum"),
        (chunk[:100], "not a whole chunk: truncated"),
        (b"X" + chunk[1:], "not a whole chunk: magic"),
        (chunk[:8] + b"\x09" + chunk[9:], "another version"),
        (chunk[:300] + b"\x01" + chunk[301:], "not a whole chunk: header"),
    ):
        path.write_bytes(damaged)
        assert main(["inspect", str(path)]) == 1
        said_now = capsys.readouterr()
        assert said in said_now.out + said_now.err
    assert main(["inspect", str(tmp_path / "none")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err


OPENER = """
import io
from kvhub import hookimpl

class Slow(io.RawIOBase):
    def __init__(self, data): self.data, self.at, self.seen = data, 0, 0
    def readable(self): return True
    def readinto(self, room):
        part = self.data[self.at:self.at + min(len(room), 1000)]
        room[:len(part)] = part
        self.at += len(part)
        print("read to", self.at)
        return len(part)

@hookimpl
def kvhub_open_url(url, config):
    if url.endswith("gone"): raise FileNotFoundError(2, "no such object")
    if url.endswith("other"): return None
    print("config has", sorted(config))
    return Slow(open(url.removeprefix("mem://"), "rb").read())
"""


def test_inspect_reads_urls_through_the_plugin_of_their_scheme(
    dists: Any, tmp_path: Path, file: Path, capsys: Any
) -> None:
    """The core knows no scheme; of an object whose header is asked for nothing else is read."""
    dists.add("mem-kv", "mem", OPENER)
    payload = bytes(range(256)) * 200
    path = tmp_path / "a.kv"
    path.write_bytes(chunkfile.pack(b"k" * 32, b"n" * 32, payload) + payload)
    url = f"mem://{path}"
    assert main(["inspect", url, "--header", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["payload"] == "not read" and json.loads(said.out)["payload_bytes"] == len(payload)
    assert said.err.splitlines()[0] == "config has []" and said.err.splitlines()[-1] == "read to 4096"
    assert main(["inspect", url, "--json", "--config", str(file)]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert (facts["payload"], facts["codec_name"], facts["decodable"]) == ("whole", "none", "yes")
    assert "config has ['kvhub', 'roles', 'stores']" in said.err
    for wrong, told in (
        ("mem://gone", "mem://gone: cannot be read: no such object"),
        ("mem://other", "mem://other: plugin 'mem' does not open such a URL"),
        ("men://a", "unknown plugin 'men'; did you mean 'mem'?"),
        ("host://a", "host://a: plugin 'host' does not open such a URL"),
    ):
        assert main(["inspect", wrong]) == 1
        assert told in capsys.readouterr().err


def test_inspect_names_codecs_also_those_that_are_not_installed(tmp_path: Path, file: Path, capsys: Any) -> None:
    path = tmp_path / "a.kv"
    for code, name in ((1, "zstd"), (4, "aes"), (99, "unknown")):
        path.write_bytes(
            chunkfile.pack(b"k" * 32, b"n" * 32, b"x" * 100, codecs=(code,), payload_bytes=150) + b"x" * 100
        )
        assert main(["inspect", str(path), "--json", "--config", str(file)]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["codec"], facts["codec_name"], facts["ratio"], facts["payload"]) == (code, name, 1.5, "whole")
        assert facts["decodable"] == f"no: the file names no such codec ({name})"
