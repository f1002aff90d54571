"""Opening UCX at start, with a real transfer in this process: what cannot move bytes is found before any peer is."""

from __future__ import annotations

import os
import time
from array import array

from kvhub.errors import KvhubError
from kvhub.types import Region
from kvhub_ucx import _settings
from kvhub_ucx._bindings import users_environment
from kvhub_ucx._libucp import IN_PROGRESS, Context, Worker, load
from kvhub_ucx.config import Config

_BYTES = 256 * 1024


def open_context(config: Config, name: str, region: Region) -> tuple[Context, dict[str, str]]:
    """A context with the region registered, and what was chosen, for the log.  Raises KvhubError."""
    library = load(config.provider)
    settings = _settings.choose(config, users_environment(), library.version)
    context = None
    try:
        context = Context(library, settings)
        lanes = probe(context)
        context.register(region.address, region.slots * region.slot_bytes, region.memory)
    except KvhubError as error:
        if context is not None:
            context.close()
        tls, devices = (settings.get(word, "of the environment") for word in ("TLS", "NET_DEVICES"))
        raise KvhubError(
            f"{name}: {error} with TLS={tls} NET_DEVICES={devices}; check the options transports and devices "
            "(`ucx_info -d` and `ip addr` list what there is)"
        ) from error
    return context, {
        "libucp": library.version_text,
        "provider": library.provider,
        **({"passed_over": "; ".join(library.passed_over)} if library.passed_over else {}),
        "probe_lanes": ",".join(lanes),
        "settings": " ".join(f"{word}={value}" for word, value in settings.items()),
    }


def probe(context: Context, timeout: float = 5.0) -> tuple[str, ...]:
    """Send 256 KiB from one worker to another; returns the lanes that UCX chose.  Raises KvhubError."""
    sender, receiver = Worker(context), Worker(context)
    try:
        receiver.connect(sender.address())
        sender.connect(receiver.address())
        source, sink = array("B", os.urandom(_BYTES)), array("B", bytes(_BYTES))
        sends, receives = array("Q", source.buffer_info()), array("Q", sink.buffer_info())
        requests = [
            (receiver, receiver.receive(1, receives.buffer_info()[0], 1)),
            (sender, sender.send(1, sends.buffer_info()[0], 1)),
        ]
        deadline = time.monotonic() + timeout
        while any(request and worker.status(request) == IN_PROGRESS for worker, request in requests):
            if not sender.progress() + receiver.progress():
                if time.monotonic() > deadline:
                    raise KvhubError(
                        f"UCX: 256 KiB did not arrive within {timeout:g} s on lanes {', '.join(sender.lanes())}"
                    )
                time.sleep(0.0002)
        for worker, request in requests:
            if request:
                context.library.check(worker.status(request), "probe transfer")
                worker.free(request)
        if sink != source:
            raise KvhubError("UCX: the probe's bytes arrived changed; this machine's UCX cannot be trusted")
        return sender.lanes()
    finally:
        for worker in (sender, receiver):
            _end(worker)


def _end(worker: Worker) -> None:
    request, deadline = worker.force_close(), time.monotonic() + 1.0
    while request and worker.status(request) == IN_PROGRESS and time.monotonic() < deadline:
        worker.progress()
    if request:
        worker.free(request)
    worker.destroy()
