"""Who is let in over UCX, and what is UCX's own about it; real connections, real UCX."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvhub.errors import KvhubError
from kvhub.testing import WirePairing, make_context, make_key, make_region
from kvhub.types import Op, Outcome

kvhub_ucx = pytest.importorskip("kvhub_ucx")

OpenHub = Callable[..., Any]


@pytest.mark.usefixtures("ucx")
class TestPairing(WirePairing):
    use, path = "ucx", "message"
    options = {"transports": "tcp", "provider": os.environ.get("KVHUB_TEST_UCX_PROVIDER", "auto")}  # noqa: RUF012


def test_E12_required_transport_is_missing(open_hub: OpenHub) -> None:
    ours, theirs = open_hub("ours", require="rc_mlx5,dc_mlx5"), open_hub("theirs")
    batch = ours.driver.submit(Op.LOAD, [make_key(0)], [0], deadline=time.monotonic() + 10, peer=theirs.peer())
    done = ours.driver.wait(batch)
    assert done.outcomes == (Outcome.FAILED,) and done.reason == "lane"
    assert "require='rc_mlx5,dc_mlx5', but UCX chose" in ours.transport.healthy()


def test_E12_no_such_transport_or_device(ucx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SECRET_ONE", "correct horse")
    config = kvhub_ucx.Config(devices="nosuch0", transports="tcp", secret_env="TEST_SECRET_ONE")
    transport = kvhub_ucx.UcxTransport(config, make_context("wire"))
    with pytest.raises(KvhubError, match=r"wire: UCX: .* with TLS=tcp,self NET_DEVICES=nosuch0; check the options"):
        transport.attach(make_region(), lambda: None)
    transport.close()


def test_ucx_changes_nothing_of_the_process(ucx: None) -> None:
    """No signal handler (UCX would take SIGHUP), no environment variable, no UCX before `attach`."""
    code = """if True:
        import contextlib, os, sys, kvhub_ucx
        with contextlib.suppress(ImportError):
            import numpy  # ucxx imports it, and its linear algebra starts a thread
        from pathlib import Path
        def caught():
            line = next(l for l in Path('/proc/self/status').read_text().splitlines() if l.startswith('SigCgt'))
            return int(line.split()[1], 16) & 0x7fffffff  # beyond are those that libc itself takes for threads
        assert 'libucx' not in sys.modules and 'libucp' not in Path('/proc/self/maps').read_text()
        before, environment, threads = caught(), dict(os.environ), len(os.listdir('/proc/self/task'))
        from kvhub_ucx import _libucp
        library = _libucp.load()
        assert len(os.listdir('/proc/self/task')) == threads
        context = _libucp.Context(library, {"TLS": "posix,tcp,self"})
        assert caught() == before and dict(os.environ) == environment
        context.close()
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
