"""The `kvhub-front` command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from kvhub_front.cli import main, parser


def test_it_listens_on_loopback_unless_told() -> None:
    assert parser().parse_args([]).host == "127.0.0.1"


def test_a_command_line_without_engines_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert "give at least one --prefill" in told
    assert "give at least one --decode" in told


def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prefill", "http://a:1", "--decode", "http://b:1", "--prefill-deadline", "soon"]) == 2
    assert "'soon'" in capsys.readouterr().err


def test_the_process_serves_and_stops_when_told(closed_port: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "kvhub_front",
        "--prefill",
        closed_port,
        "--decode",
        closed_port,
        "--port",
        str(port),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 10
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                except urllib.error.HTTPError as told:
                    assert told.code == 503
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()
