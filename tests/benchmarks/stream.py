"""Time to first token through the front, with both legs at once and with one after the other.

    stream.py [--model DIR] [--rounds 7] [--tokens 4000] [--step-tokens 512] [--mbit 200]

One prefill and one decode engine, one front with `--streaming` and one without before the same two.  In each round each
front sees a new prompt, in changing order; then the prefill engine alone computes one of them again (it retrieves
nothing, and has no prefix cache), which says what computing takes, and what the answer should have been.  An answer
that differs fails the run.

Decode lives in a network namespace behind a veth pair and the wire is told to send messages over TCP, not to look for
memory of one machine.  So the same engines are measured in each round over two wires: the pair as it is, and held to
`--mbit` in each direction by `tc tbf`.  That needs root, iproute2 and tc; else only one wire is measured, whatever the
wire chooses on one machine, and that is said.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.paths import model
from harness.serving import Engine, FrontProcess, connector
from peer import machine

ROWS = ("one after the other", "streaming", "prefill alone")
HERE, THERE = "10.231.77.1", "10.231.77.2"
SECRET = "WIRE_SECRET"
YAML = """\
kvhub: 1
chunk_tokens: 64
limits: {{lookup: 5s, lease: 60s, staging: 512MiB}}
transports:
  wire: {{use: ucx, listen: "{listen}:0", secret_env: {secret}, transports: "{transports}", path: "{path}",
         transfer_timeout: 120s}}
roles:
  prefill: {{store: [wire]}}
  decode: {{retrieve: [{{from: wire, deadline: 120s}}]}}
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="default: tiny-llama-gqa-bench, 16 KiB of KV per token")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of a prompt")
    parser.add_argument("--step-tokens", type=int, default=512, help="the engines' max_num_batched_tokens")
    parser.add_argument("--threads", type=int, default=2, help="OMP threads of an engine")
    parser.add_argument("--mbit", type=int, default=200, help="rate of the slow wire")
    parser.add_argument(
        "--quiet", type=float, default=10, help="seconds that a round waits for other processes to rest"
    )
    parser.add_argument("--folder", type=Path, help="where logs go; kept.  Default: a temporary folder")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, flush=True)


# -- the slow wire


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Link:
    """A network namespace behind a veth pair.  Raises OSError or CalledProcessError without the right or the tools."""

    def __init__(self) -> None:
        number = os.getpid()
        self.name, self._mine, self._theirs = f"kvhub{number}", f"kh{number}a", f"kh{number}b"
        self._inside = ("ip", "netns", "exec", self.name)
        run("ip", "netns", "add", self.name)
        try:
            run("ip", "link", "add", self._mine, "type", "veth", "peer", "name", self._theirs)
            run("ip", "link", "set", self._theirs, "netns", self.name)
            run("ip", "addr", "add", f"{HERE}/24", "dev", self._mine)
            run("ip", "link", "set", self._mine, "up")
            run(*self._inside, "ip", "addr", "add", f"{THERE}/24", "dev", self._theirs)
            run(*self._inside, "ip", "link", "set", self._theirs, "up")
            run(*self._inside, "ip", "link", "set", "lo", "up")
            self.hold(1000)
            self.hold(None)
        except BaseException:
            self.close()
            raise

    def hold(self, mbit: int | None) -> None:
        """Hold both directions to so many Mbit/s, or to nothing."""
        for inside, device in ((), self._mine), (self._inside, self._theirs):
            subprocess.run((*inside, "tc", "qdisc", "del", "dev", device, "root"), capture_output=True)
            if mbit is not None:
                shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "100ms")
                run(*inside, "tc", "qdisc", "add", "dev", device, *shape)

    def close(self) -> None:
        # The pair goes with either of its ends.
        subprocess.run(("ip", "link", "del", self._mine), capture_output=True)
        subprocess.run(("ip", "netns", "del", self.name), capture_output=True)


@contextmanager
def linked() -> Iterator[Link | None]:
    """A link, or None where none can be made."""
    try:
        link = Link()
    except (subprocess.CalledProcessError, OSError) as why:
        say(f"no link of our own can be made here ({why}): one wire only, and that within this machine")
        yield None
        return
    try:
        yield link
    finally:
        link.close()


class Apart(Engine):
    """An engine in a network namespace, listening on an address that is seen from outside of it."""

    def __init__(self, *given: Any, namespace: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.url = self.url.replace("127.0.0.1", THERE)
        command = [THERE if part == "127.0.0.1" else part for part in self._command]
        self._command = ["ip", "netns", "exec", namespace, *command]


# -- what runs


@attrs.frozen
class Deployment:
    prefill: Engine
    decode: Engine
    fronts: dict[str, FrontProcess]


@contextmanager
def deployed(link: Link | None, given: argparse.Namespace, home: Path) -> Iterator[Deployment]:
    """Both engines and both fronts, warmed up."""
    with ExitStack() as running:

        def engine(role: str, address: str) -> Engine:
            config = home / f"{role}.yaml"
            text = YAML.format(
                listen=address, secret=SECRET, transports="tcp" if link else "auto", path="message" if link else "auto"
            )
            config.write_text(text)
            more: dict[str, Any] = {
                "transfer": connector(config, role),
                "block_size": 64,
                "max_model_len": given.tokens + 64,
                "kv_bytes": 256 << 20,
                "flags": ["--no-enable-prefix-caching", "--max-num-batched-tokens", str(given.step_tokens)],
                "env": {SECRET: secret, "OMP_NUM_THREADS": str(given.threads)},
            }
            weights, log = given.model or model("tiny-llama-gqa-bench"), home / f"{role}.log"
            if link and role == "decode":
                return Apart(role, weights, log, namespace=link.name, **more)
            return Engine(role, weights, log, **more)

        secret = secrets.token_hex(16)
        prefill = engine("prefill", HERE if link else "127.0.0.1")
        decode = engine("decode", THERE if link else "127.0.0.1")
        fronts = {
            row: FrontProcess([prefill.url], [decode.url], home / f"front-{at}.log", flags=flags)
            for at, (row, flags) in enumerate(zip(ROWS, ([], ["--streaming"]), strict=False))
        }
        for process in (prefill, decode, *fronts.values()):
            running.enter_context(process)
        for process in (prefill, decode, *fronts.values()):
            process.ready()
        found = Deployment(prefill, decode, fronts)
        for at in range(2):
            for front in fronts.values():
                # The first answer tells a front where the prefill's hub is.
                front.stream(prompt(2 * given.step_tokens, 1000 + at), max_tokens=2)
        yield found


def prompt(tokens: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(20, 250) for _ in range(tokens)]


def measure(found: Deployment, link: Link | None, given: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds to the first token by wire and row, one per round.  Raises SystemExit for an answer that differs."""
    wires: dict[str, int | None] = {"unthrottled": None}
    if link is not None:
        wires[f"{given.mbit} Mbit/s"] = given.mbit
    results: dict[str, dict[str, list[float]]] = {wire: {row: [] for row in ROWS} for wire in wires}
    pids = [*found.prefill.pids, *found.decode.pids, *(pid for front in found.fronts.values() for pid in front.pids)]
    seeds = itertools.count()
    for number in range(given.rounds):
        for wire, mbit in wires.items():
            if link is not None:
                link.hold(mbit)
            seconds = results[wire]
            asked = {row: prompt(given.tokens, next(seeds)) for row in found.fronts}
            answers = {}
            for row in [*asked][:: 1 if number % 2 else -1]:
                machine.wait_for_quiet(pids, given.quiet)
                output = found.fronts[row].stream(asked[row], max_tokens=8)
                seconds[row].append(output.first_token_seconds)
                answers[row] = output.tokens
                # The prefill leg's own end: copies and a promise that is let go.
                time.sleep(0.3)
            row = ROWS[number % 2]
            plain = found.prefill.stream(asked[row], max_tokens=8)
            seconds[ROWS[2]].append(plain.first_token_seconds)
            if plain.tokens != answers[row]:
                sys.exit(f"round {number}, {row}: the answer differs: {answers[row]}, computed {plain.tokens}")
            say(f"  {wire}: " + ", ".join(f"{row} {seconds[row][-1]:.2f} s" for row in ROWS))
    return results


def table(results: dict[str, dict[str, list[float]]]) -> None:
    say("\n| wire | " + " | ".join(f"{row}, s" for row in ROWS) + " | streaming / one after the other |")
    say("| --- |" + " --- |" * (len(ROWS) + 1))
    for name, rows in results.items():
        middle = [statistics.median(rows[row]) for row in ROWS]
        ratios = [on / off for off, on in zip(rows[ROWS[0]], rows[ROWS[1]], strict=True)]
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        say(f"| {name} | " + " | ".join(f"{value:.2f}" for value in middle) + f" | {told} |")


def main() -> None:
    given = arguments()
    # Who stops us must not leave a link behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    home = given.folder or Path(tempfile.mkdtemp(prefix="kvhub-stream-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        with linked() as link:
            say("starting two engines and two fronts")
            with deployed(link, given, home) as found:
                watch = machine.Watch([*found.prefill.pids, *found.decode.pids])
                results = measure(found, link, given)
                early = found.prefill.metrics().total("kvhub:streamed_chunks_total")
                say(f"\nchunks that left before their prompt was done: {early:.0f}")
                say(f"other processes kept {watch.others():.1f} of {os.cpu_count()} cores busy")
        say(f"{given.rounds} rounds, prompts of {given.tokens} tokens, steps of {given.step_tokens}; medians")
        table(results)
    finally:
        if given.folder is None:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
