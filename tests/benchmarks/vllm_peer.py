"""kvhub beside LMCache, vLLM's own prefix cache and no cache at all: same engine, same model, same prompts, one run.

    vllm_peer.py --model DIR --peer-python .venv-lmcache/bin/python [--rounds 7] [--tokens 4100] [--only ROW ...]

Every row has an engine process of its own.  They take turns: while one measures, the others have nothing to do.  In
each round every row sees the same new prompt, in a new order: once cold, then twice warm with the engine's own prefix
cache emptied before (except where that is the row).  Ratios are medians over the rounds, so that a machine that gets
slower for a while slows both sides.  Every answer is compared with the plain engine's, token and logprobs; one that
differs fails the run, and so does a comparison that could not have failed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import attrs
from peer import machine, outputs, report, rows
from peer.process import EngineFailed
from peer.rows import Row, Sample, Setup

BLOCK_TOKENS = 128
TAIL = [11, 12, 13, 14]
"""All prompts end alike, see `outputs.blind`."""
WARM = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a small llama with random weights")
    parser.add_argument("--python", default=sys.executable, help="python of the engine environment")
    parser.add_argument("--peer-python", required=True, help="python of the environment that lmcache_env.sh built")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=4100, help="tokens of a prompt")
    parser.add_argument("--step-tokens", type=int, default=2048, help="the engine's max_num_batched_tokens")
    parser.add_argument("--threads", type=int, default=2, help="OMP threads of an engine")
    parser.add_argument("--cache-gigabytes", type=int, default=2, help="host memory of a cache")
    parser.add_argument("--only", nargs="+", choices=rows.ORDER, default=list(rows.ORDER), metavar="ROW")
    parser.add_argument(
        "--quiet", type=float, default=20, help="seconds that a round waits for other processes to rest"
    )
    parser.add_argument("--folder", type=Path, help="where pools and logs go; kept.  Default: a temporary folder")
    parser.add_argument("--json", type=Path, help="write every sample there")
    parser.add_argument("--strict", action="store_true", help="exit with 3 if a goal is short")
    return parser.parse_args()


def prompts(count: int, tokens: int) -> list[list[int]]:
    """Random ids that every byte-level vocabulary has."""
    draw = random.Random(20)
    return [[draw.randrange(20, 250) for _ in range(tokens - len(TAIL))] + TAIL for _ in range(count)]


def say(text: str) -> None:
    print(text, flush=True)


def start(names: list[str], setup: Setup) -> list[Row]:
    """All rows, warmed up; closes what it started if one fails."""
    begun = time.monotonic()
    built: list[Row] = []
    try:
        built.extend(Row(name, setup) for name in names)
        # Two at a time: a small machine gains nothing from more, and each import of vLLM takes a core.
        for first in range(0, len(built), 2):
            pair = built[first : first + 2]
            for row in pair:
                row.start()
            for row in pair:
                row.engine.ready()
                say(f"  {row.name} is up after {time.monotonic() - begun:.0f} s")
    except BaseException:
        close(built)
        raise
    return built


def close(built: list[Row]) -> None:
    for row in built:
        row.close()


def measure(built: list[Row], all_prompts: list[list[int]], quiet: float) -> dict[str, list[report.Round]]:
    """Every row answers every prompt; the first round only warms up and is not counted."""
    results: dict[str, list[report.Round]] = {row.name: [] for row in built}
    order = list(built)
    shuffle = random.Random(7)
    pids = [pid for row in built for pid in row.pids]
    for number, prompt in enumerate(all_prompts):
        machine.wait_for_quiet(pids, quiet if number else 0)
        shuffle.shuffle(order)
        words = []
        watch = machine.Watch(pids)
        for row in order:
            cold = row.cold(prompt)
            warm = tuple(sample for _ in range(WARM) if (sample := row.warm(prompt)))
            results[row.name].append(report.Round(cold, warm))
            served = "/".join(f"{sample.seconds * 1000:.0f}" for sample in warm)
            words.append(f"{row.name} {cold.seconds:.2f}s" + (f" {served}ms" if served else ""))
        title = f"round {number}" if number else "warm-up"
        say(f"  {title} (others used {watch.others():.1f} cores): " + ", ".join(words))
    return results


def check(built: list[Row], results: dict[str, list[report.Round]], all_prompts: list[list[int]]) -> list[str]:
    """What is wrong with the answers, warm-up included; [] is what it takes for the figures to count."""
    plain = next(row for row in built if row.name == rows.PLAIN)
    references = [each.cold for each in results[rows.PLAIN]]
    own: list[Sample] = [sample for each in results.get(rows.OWN, ()) for sample in each.warm]
    matched = [outputs.difference(references[number // WARM], sample) for number, sample in enumerate(own)]
    tolerance = max([outputs.FLOOR, *(2 * apart for apart in matched if apart < 1e-2)])
    altered = list(all_prompts[0])
    middle = len(altered) // 2 // BLOCK_TOKENS * BLOCK_TOKENS
    altered[middle : middle + BLOCK_TOKENS] = all_prompts[1][middle : middle + BLOCK_TOKENS]
    problem = outputs.blind(references, plain.cold(altered), tolerance)
    found = [f"negative control: {problem}"] if problem else []
    for number, reference in enumerate(references):
        samples = {name: [rounds[number].cold, *rounds[number].warm] for name, rounds in results.items()}
        found += [f"prompt {number}, {line}" for line in outputs.mismatches(reference, samples, tolerance)]
    compared = sum(1 + len(each.warm) for rounds in results.values() for each in rounds)
    say(f"answers: {compared} compared with the plain engine's, {len(found)} problems, tolerance {tolerance:.1g}")
    return found


def setup_of(args: argparse.Namespace, folder: Path) -> Setup:
    setup = Setup(
        model=args.model.resolve(),
        python=args.python,
        peer_python=args.peer_python,
        prompt_tokens=args.tokens,
        step_tokens=args.step_tokens,
        kv_bytes=0,
        cache_gigabytes=args.cache_gigabytes,
        threads=args.threads,
        folder=folder,
    )
    # Little more than two prompts: the warm-up round then touches every page of it.
    blocks = 2 * -(-args.tokens // BLOCK_TOKENS) + 6
    return attrs.evolve(setup, kv_bytes=blocks * BLOCK_TOKENS * setup.token_bytes)


def require(args: argparse.Namespace, names: list[str]) -> None:
    """End with a sentence if something that the rows need is not there."""
    if not (args.model / "config.json").is_file():
        raise SystemExit(
            f"vllm_peer: no model at {args.model} (found no config.json); build it with tests/models/build.py"
        )
    if {rows.PEER_DRAM, rows.PEER_FILES} & set(names) and not Path(args.peer_python).is_file():
        raise SystemExit(
            f"vllm_peer: no python at {args.peer_python}; build the peer's environment with lmcache_env.sh, "
            f"or leave its rows out with --only"
        )
    if args.folder and args.folder.is_dir() and any(args.folder.iterdir()):
        raise SystemExit(f"vllm_peer: {args.folder} is not empty; pools left from another run would serve this one")


def tell(counted: report.Results, idle: dict[str, float]) -> list[report.Goal]:
    for line in report.table(counted):
        say(line)
    say("idle rows use " + ", ".join(f"{name} {share * 100:.1f} %" for name, share in idle.items()) + " of a core")
    found = report.goals(counted)
    for goal in found:
        say(goal.line())
    if reason := report.doubt(counted):
        say(f"DOUBT {reason}")
    return found


def main() -> int:
    args = arguments()
    names = [name for name in rows.ORDER if name in args.only or name == rows.PLAIN]
    require(args, names)
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="kvhub-peer-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    setup = setup_of(args, folder)
    megabytes = args.tokens * setup.token_bytes / 1e6
    say(f"{args.tokens} tokens a prompt, {megabytes:.0f} MB of KV; {args.rounds} rounds of {len(names)} rows")
    say(f"pools and logs are in {folder}")
    built: list[Row] = []
    try:
        built = start(names, setup)
        all_prompts = prompts(args.rounds + 1, args.tokens)
        results = measure(built, all_prompts, args.quiet)
        problems = check(built, results, all_prompts)
        idle = {row.name: machine.idle_share(row.pids, 1.0) for row in built}
    except EngineFailed as failure:
        say(f"vllm_peer: {failure}")
        return 1
    finally:
        close(built)
    counted = {name: rounds[1:] for name, rounds in results.items()}
    found = tell(counted, idle)
    if args.json:
        args.json.write_text(json.dumps({name: [attrs.asdict(one) for one in many] for name, many in counted.items()}))
    for problem in problems:
        say(f"PROBLEM {problem}")
    if problems:
        return 1
    if args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 3 if args.strict and not all(goal.met for goal in found) else 0


if __name__ == "__main__":
    sys.exit(main())
