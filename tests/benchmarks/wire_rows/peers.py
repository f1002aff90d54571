"""Competitors with two processes: plain sockets and NIXL."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

from wire_rows.cases import Case
from wire_rows.media import Medium
from wire_rows.process import Process
from wire_rows.rows import PULLER, SERVER, Amount, figure

_QUIET = {"NIXL_LOG_LEVEL": "WARN", "UCX_WARN_UNUSED_ENV_VARS": "n"}


class Sockets:
    """One connection, no library; on the media that have one."""

    def __init__(self, medium: Medium, *, checked: bool = False) -> None:
        self.name, role = ("plain sockets checked", "-checked") if checked else ("plain sockets", "")
        with ExitStack() as undo:
            self._server = Process("sockets", f"server{role}", SERVER, enter=medium.server_enter)
            undo.callback(self._server.close)
            self._puller = Process("sockets", f"puller{role}", PULLER, enter=medium.puller_enter)
            undo.callback(self._puller.close)
            port = self._server.ask("listen", host=medium.server_host)["port"]
            self._puller.ask("connect", host=medium.server_host, port=port)
            undo.pop_all()

    def measure(self, case: Case, amount: Amount, first: bool) -> float | None:
        count = amount.pulls(case)
        self._server.tell("serve", count=count + first)
        answer = self._puller.ask("pull", case=case.name, count=count, check=first)
        self._server.answer()
        return figure(self.name, case, answer)

    def close(self) -> None:
        self._puller.close()
        self._server.close()


class Nixl:
    """WRITE is started by the server, READ by the puller.  Both are stopped while others are measured."""

    def __init__(self, medium: Medium, python: Path, operation: str) -> None:
        self.name, self.operation = f"NIXL {operation}", operation
        with ExitStack() as undo:
            ends = []
            for role, core, enter in (
                ("server", SERVER, medium.server_enter),
                ("puller", PULLER, medium.puller_enter),
            ):
                end = Process("nixl_peer", role, core, python=str(python), enter=enter, env={**medium.nixl, **_QUIET})
                undo.callback(end.close)
                ends.append(end)
            self._server, self._puller = ends
            self._starter = self._server if operation == "WRITE" else self._puller
            cards = [end.ask("open", starts=end is self._starter) for end in ends]
            for end, card in zip(ends, reversed(cards), strict=True):
                end.ask("meet", **card)
            self._rest()
            undo.pop_all()

    def _rest(self) -> None:
        for end in (self._server, self._puller):
            end.signal(signal.SIGSTOP)

    def measure(self, case: Case, amount: Amount, first: bool) -> float | None:
        for end in (self._server, self._puller):
            end.signal(signal.SIGCONT)
        try:
            number, bad = self._starter.ask("next", case=case.name)["number"], 0
            if first:
                self._puller.ask("clear", case=case.name, number=number)
                self._starter.ask("transfer", case=case.name, operation=self.operation, count=1)
                bad = self._puller.ask("wrong", case=case.name, number=number)["wrong"]
            answer = self._starter.ask("transfer", case=case.name, operation=self.operation, count=amount.pulls(case))
            return figure(self.name, case, {**answer, "wrong": bad})
        finally:
            self._rest()

    def close(self) -> None:
        self._puller.close()
        self._server.close()
