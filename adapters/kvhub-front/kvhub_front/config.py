"""What a front is told when it starts."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import attrs

from kvhub.errors import ConfigError
from kvhub.units import seconds

FAIL, LOCAL = "fail", "local"


def _urls(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(url.rstrip("/") for url in given)


@attrs.frozen
class FrontConfig:
    """Where the engines are and what happens when a prefill engine is not there.

    Raises ConfigError with every problem at once.
    """

    prefill: tuple[str, ...] = attrs.field(converter=_urls)
    """Addresses of the prefill engines, `http://host:port`; requests take them in turn."""
    decode: tuple[str, ...] = attrs.field(converter=_urls)
    on_prefill_failure: str = FAIL
    """`fail`: the client gets the error.  `local`: decode computes the prompt, and the answer's header says so."""
    prefill_deadline: float = attrs.field(default=300.0, converter=seconds)
    """Seconds from a request's prefill leg being sent to its answer."""
    streaming: bool = False
    """Send both legs at once, for decode to pull while prefill computes; a prefill's failure then fails no request."""
    connect_deadline: float = attrs.field(default=5.0, converter=seconds)
    """Seconds to reach an engine's port; an engine that is not there must not cost more."""

    def __attrs_post_init__(self) -> None:
        problems = []
        for leg in ("prefill", "decode"):
            urls = getattr(self, leg)
            if not urls:
                problems.append(f"{leg}: no engine is named; give at least one --{leg} http://HOST:PORT")
            problems += [
                f"{leg}: expected http://HOST:PORT, found {url!r}"
                for url in urls
                if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname
            ]
        if self.on_prefill_failure not in (FAIL, LOCAL):
            problems.append(f"on_prefill_failure: expected 'fail' or 'local', found {self.on_prefill_failure!r}")
        if problems:
            raise ConfigError(problems, where="kvhub-front")

    @property
    def hosts(self) -> frozenset[str]:
        """Host names that no client may read in an error."""
        return frozenset(urlsplit(url).hostname or "" for url in self.prefill + self.decode)
