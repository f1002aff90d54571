"""The rows: what is started for a medium, and how one of them measures a case.

A row is measured by its own code and told by one figure: GB/s, and for the single chunk microseconds.  Where it has two
processes, the server sits on core 1 and the puller on core 0; memcpy, which needs one, is on core 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any, Protocol

import attrs

from wire_rows import perftest
from wire_rows.cases import SCATTER, SINGLE, Case
from wire_rows.media import Medium
from wire_rows.process import Process, RowFailed

PULLER, SERVER = 0, 1
RETRIES = 3


@attrs.frozen
class Amount:
    """How much a row moves for one figure."""

    bytes: int
    singles: int

    def pulls(self, case: Case) -> int:
        return self.singles if case.name == SINGLE else max(1, self.bytes // case.total)


class Row(Protocol):
    name: str

    def measure(self, case: Case, amount: Amount, first: bool) -> float | None:
        """GB/s (single chunk: microseconds), None for what this row has no figure for.  `first` checks the bytes."""

    def close(self) -> None: ...


def figure(name: str, case: Case, answer: Mapping[str, Any]) -> float:
    if answer["wrong"]:
        raise WrongBytes(f"{name}: {answer['wrong']} of {case.count} chunks of {case.name} arrived with wrong bytes")
    seconds = answer["seconds"]
    if case.name == SINGLE:
        return float(median(seconds)) * 1e6
    # Mean of the pulls: a stall is a part of what a row costs.
    return float(answer["bytes"]) * len(seconds) / sum(seconds) / 1e9


class WrongBytes(RowFailed):
    """Not a slow row but a broken one."""


class Memory:
    """memcpy, between cold arenas."""

    name = "memcpy cold"

    def __init__(self) -> None:
        self._process = Process("memcpy", "-", PULLER)

    def measure(self, case: Case, amount: Amount, first: bool) -> float | None:
        return figure(self.name, case, self._process.ask("pull", case=case.name, count=amount.pulls(case), check=first))

    def close(self) -> None:
        self._process.close()


class Perftest:
    """`ucx_perftest`; has no scattered pieces, and its latency test is another thing than a pull."""

    def __init__(self, medium: Medium, test: str, label: str, settings: Mapping[str, str] | None = None) -> None:
        perftest.folder()
        self.name, self.test, self.medium = label, test, medium
        self.settings = {**medium.ucx, **(settings or {})}

    def measure(self, case: Case, amount: Amount, first: bool) -> float | None:
        if case.name in (SINGLE, SCATTER):
            return None
        for _ in range(RETRIES):
            try:
                return self._rate(case, amount)
            except RowFailed as why:
                # Somebody may have taken its port since it was found free.
                failed = why
        raise failed

    def _rate(self, case: Case, amount: Amount) -> float:
        medium = self.medium
        return perftest.rate(
            self.test,
            case.bytes,
            amount.bytes,
            self.settings,
            host=medium.server_host,
            server=medium.server_enter,
            client=medium.puller_enter,
        )

    def close(self) -> None:
        pass


class Ours:
    """A kvhub transport; the server's and the puller's are opened per chunk size and stay open."""

    def __init__(
        self,
        medium: Medium,
        package: str,
        label: str,
        *,
        mapped: bool = False,
        environment: Mapping[str, str] | None = None,
        **options: str,
    ) -> None:
        self.name, self.medium, self.mapped = label, medium, mapped
        self.options = {**medium.options(package), **options}
        env = {"KVHUB_BENCH_SECRET": "only for this benchmark", **(environment or {})}
        self._opened: dict[str, list[str]] = {}
        self.missing: list[str] = []
        with ExitStack() as undo:
            self._server = Process("ours", package, SERVER, enter=medium.server_enter, env=env)
            undo.callback(self._server.close)
            self._puller = Process("ours", package, PULLER, enter=medium.puller_enter, env=env)
            undo.callback(self._puller.close)
            self._server.tell("prepare", filled=True)
            self._puller.tell("prepare", filled=False)
            self._server.answer()
            self._puller.answer()
            undo.pop_all()

    def _open(self, case: str) -> list[str]:
        if case not in self._opened:
            answers = []
            for process, host in ((self._server, self.medium.server_host), (self._puller, self.medium.puller_host)):
                options = {**self.options, "listen": f"{host}:0"}
                serves = process is self._server
                answers.append(process.ask("open", case=case, serves=serves, mapped=self.mapped, options=options))
            self._opened[case], self.missing = answers[0]["peer"], answers[0]["missing"]
            # Pairing, and the first look at the peer's memory, are not what is measured.
            self._puller.ask("pull", case=case, peer=self._opened[case], count=1, check=False)
        return self._opened[case]

    def measure(self, case: Case, amount: Amount, first: bool) -> float | None:
        peer = self._open(case.name)
        answer = self._puller.ask("pull", case=case.name, peer=peer, count=amount.pulls(case), check=first)
        return figure(self.name, case, answer)

    def idle(self, seconds: float) -> float:
        """The busier one's share of a core, while nobody asks anything of either."""
        before = [process.ask("cpu") for process in (self._server, self._puller)]
        time.sleep(seconds)
        after = [process.ask("cpu") for process in (self._server, self._puller)]
        return max((b["cpu"] - a["cpu"]) / (b["at"] - a["at"]) for a, b in zip(before, after, strict=True))

    def close(self) -> None:
        self._puller.close()
        self._server.close()
