"""`kvhub-front`: serve one address in front of prefill and decode engines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aiohttp import web

from kvhub.errors import ConfigError
from kvhub_front.app import Front
from kvhub_front.config import FAIL, LOCAL, FrontConfig


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="kvhub-front", description="An OpenAI-compatible front for prefill and decode engines that use kvhub."
    )
    top.add_argument("--prefill", action="append", default=[], metavar="URL", help="a prefill engine; may be repeated")
    top.add_argument("--decode", action="append", default=[], metavar="URL", help="a decode engine; may be repeated")
    top.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    top.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    top.add_argument(
        "--on-prefill-failure",
        default=FAIL,
        choices=(FAIL, LOCAL),
        help="fail: the client gets the error; local: decode computes the prompt, and the answer says so in the "
        "header x-kvhub-prefill (default: %(default)s)",
    )
    top.add_argument(
        "--streaming",
        action="store_true",
        help="send both legs at once: decode pulls KV while prefill computes, and computes itself what does not come, "
        "whatever --on-prefill-failure says (default: off)",
    )
    top.add_argument("--prefill-deadline", default="300s", metavar="TIME", help="default: %(default)s")
    top.add_argument("--connect-deadline", default="5s", metavar="TIME", help="default: %(default)s")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a front until it is told to stop (SIGINT, SIGTERM).  2 when the command line makes no sense."""
    given = parser().parse_args(arguments)
    try:
        config = FrontConfig(
            prefill=given.prefill,
            decode=given.decode,
            on_prefill_failure=given.on_prefill_failure,
            streaming=given.streaming,
            prefill_deadline=given.prefill_deadline,
            connect_deadline=given.connect_deadline,
        )
    except (ConfigError, ValueError) as why:
        print(why, file=sys.stderr)
        return 2
    web.run_app(
        Front(config).application(),
        host=given.host,
        port=given.port,
        handler_cancellation=True,
        shutdown_timeout=5.0,
        access_log=None,
        print=lambda *words: print(*words, flush=True),
    )
    return 0
