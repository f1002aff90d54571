"""Installs each package alone, with the lowest versions that it declares, and runs its tests.

    python tests/packaging/floors.py [NAME...]

For each package: an sdist, a wheel of that sdist, a fresh environment with the wheel, the core and what else of ours it
needs, every `>=` taken as `==`; then `pip check`, its import, `kvhub plugins`, the contract of what it brings
(`pytest --kvhub-use`), and its own folder of tests.  What could not be run is printed with the reason.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from building import build_all, packages, rebuild
from trial import COMPANIONS, Bench, Trial, own


def trials(names: Sequence[str], folder: Path) -> list[Trial]:
    """Try all packages, or those named, in a folder; prints each as it is there."""
    every = {package.name: package for package in packages()}
    chosen = [package for name, package in every.items() if not names or name in names]
    needed = {each.name: each for package in chosen for each in own(package, every)}
    needed |= {name: every[name] for package in chosen for name in COMPANIONS.get(package.name, [])}
    sdists = build_all(needed.values(), folder / "sdists", "sdist")
    wheels = {name: rebuild(files[0], folder / "wheels" / name) for name, files in sdists.items()}
    bench, found = Bench(every, wheels, folder), []
    for package in chosen:
        trial = bench.attempt(package)
        print(f"{'FAILS' if trial.problem else 'passes':9} {trial.name:14} {trial.seconds:5.1f} s  ", *trial.versions)
        for line in trial.told:
            print(f"{'':10}{line}")
        print(trial.problem, end="\n" if trial.problem else "", flush=True)
        found.append(trial)
    return found


def main(names: Sequence[str]) -> int:
    """The exit status."""
    with tempfile.TemporaryDirectory(prefix="kvhub-floors-") as text:
        found = trials(names, Path(text))
    failed = sum(bool(trial.problem) for trial in found)
    print(f"{len(found)} packages, {failed} problems")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
