"""Installs each package alone, with the lowest versions that it declares, and tries it.

    python tests/packaging/floors.py [NAME...]

For each package: a fresh environment, the wheel of the core and its own, every `>=` of either taken as `==`; then its
import, `kvhub plugins`, and the contract of what it brings (`pytest --kvhub-use`) where that needs no server and no
device.  Packages that need torch are left out and said: their lowest torch alone is larger than all else together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import attrs
from building import Package, build_all, packages
from packaging.requirements import Requirement

CONTRACTS = {
    "kvhub": [["host", "capacity: 16MiB\n", "safe", ""]],
    "kvhub-aes": [["aes", "key: {env: KVHUB_FLOOR_KEY}\n", "works", ""]],
    "kvhub-example": [["example", "root: FOLDER/kv\n", "safe", "store"], ["example", "level: 1\n", "works", "codec"]],
    "kvhub-nfs": [["nfs", "root: FOLDER\n", "safe", ""]],
    "kvhub-tcp": [["tcp", "path: message\n", "works", ""]],
    "kvhub-zstd": [["zstd", "level: 1\n", "works", ""]],
}
"""Package -> (use, options, level, kind) of each contract to run."""
MORE = {"kvhub-front": [["-m", "kvhub_front", "--help"]]}
"""Package -> what else Python is to run."""
TESTING = Requirement("pytest>=8.0")


@attrs.frozen
class Trial:
    """How one package fared."""

    name: str
    seconds: float
    versions: tuple[str, ...]
    problem: str
    """"" when all is well."""


def needs_torch(package: Package) -> bool:
    return any(Requirement(text).name == "torch" for text in package.project.get("dependencies", []))


def lowest(texts: list[str]) -> list[str]:
    """Requirements at their lowest version, in pip's words; ours are left out, they come as wheels."""
    found = []
    for requirement in map(Requirement, texts):
        floors = [each.version for each in requirement.specifier if each.operator in (">=", "==", "~=")]
        if not requirement.name.startswith("kvhub"):
            found.append(f"{requirement.name}=={floors[0]}")
    return found


def attempt(package: Package, core: Package, wheels: dict[str, list[Path]], folder: Path) -> Trial:
    """Install and try one package."""
    began = time.monotonic()
    home = folder / package.name
    venv.create(home / "venv", with_pip=False)
    python = home / "venv" / "bin" / "python"
    pins = sorted({*lowest([*core.project["dependencies"], *package.project.get("dependencies", []), str(TESTING)])})
    files = [str(wheels[name][0]) for name in dict.fromkeys((core.name, package.name))]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input", "-q"]
    commands = [[*pip, "install", *pins, *files], [*pip, "check"]]
    commands.append([str(python), "-c", f"import {package.module}"])
    commands += [[str(python), *arguments] for arguments in MORE.get(package.name, [])]
    commands.append([str(python), "-m", "kvhub.cli", "plugins", "--json"])
    for number, (use, options, level, kind) in enumerate(CONTRACTS.get(package.name, [])):
        place = home / f"kv-{number}"
        place.mkdir()
        (home / f"{number}.yaml").write_text(options.replace("FOLDER", str(place)))
        test = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--kvhub-use", use, "--kvhub-level", level]
        commands.append([*test, "--kvhub-options", f"{number}.yaml", *(["--kvhub-kind", kind] if kind else [])])
    problem = ""
    for command in commands:
        problem = problem or _run(command, home)
    return Trial(package.name, time.monotonic() - began, tuple(pins), problem)


def _run(command: list[str], folder: Path) -> str:
    key = "00112233445566778899aabbccddeeff" * 2
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        command, cwd=folder, env=environment | {"KVHUB_FLOOR_KEY": key}, capture_output=True, text=True, timeout=600
    )
    said = " ".join(command[1:])
    if done.returncode:
        return f"{said}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if command[-2:] == ["plugins", "--json"]:
        broken = [row for row in json.loads(done.stdout) if "broken" in row]
        return f"{said}: {broken}" if broken else ""
    return ""


def main(names: list[str]) -> int:
    """Try all packages, or those named; the exit status."""
    every = packages()
    chosen = [package for package in every if not names or package.name in names]
    tried = [package for package in chosen if not needs_torch(package)]
    for package in chosen:
        if needs_torch(package):
            print(f"left out  {package.name}: needs torch", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kvhub-floors-") as text:
        folder = Path(text)
        wheels = build_all(dict.fromkeys([every[0], *tried]), folder / "wheels", "wheel")
        for package in tried:
            trial = attempt(package, every[0], wheels, folder)
            failed += bool(trial.problem)
            verdict = "FAILS" if trial.problem else "passes"
            print(f"{verdict:9} {trial.name:14} {trial.seconds:5.1f} s  {' '.join(trial.versions)}")
            print(trial.problem, end="\n" if trial.problem else "", flush=True)
    print(f"{len(tried)} packages, {failed} problems")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
