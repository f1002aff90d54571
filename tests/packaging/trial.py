"""One package in an environment of its own, with the lowest versions that it declares: installed, imported, tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import attrs
from building import ROOT, Package
from packaging.requirements import Requirement

CORE_TESTS = ("core", "hub", "wire", "engine", "contracts", "cli", "format")
CONTRACTS = {
    "kvhub": [["host", "capacity: 16MiB\n", "safe", ""]],
    "kvhub-example": [["example", "root: FOLDER/kv\n", "safe", "store"], ["example", "level: 1\n", "works", "codec"]],
    "kvhub-nfs": [["nfs", "root: FOLDER\n", "safe", ""]],
    "kvhub-tcp": [["tcp", "path: message\n", "works", ""]],
    "kvhub-zstd": [["zstd", "level: 1\n", "works", ""]],
}
"""Package -> (use, options, level, kind) of each contract to run without any test file."""
COMPANIONS = {
    "kvhub": ["kvhub-aes", "kvhub-nfs", "kvhub-s3", "kvhub-tcp", "kvhub-ucx", "kvhub-zstd"],
    "kvhub-aes": ["kvhub-nfs"],
    "kvhub-quant": ["kvhub-nfs"],
    "kvhub-zstd": ["kvhub-nfs"],
}
"""Package -> packages that its tests need beside it, and it does not."""
EXTRAS = {"kvhub-ucx": "libucx"}
"""Package -> the extra without which its tests could only be skipped."""
PEERS = {"kvhub-vllm": "vLLM", "kvhub-sglang": "SGLang"}
"""Adapter -> its engine: declared by none, since engines go by several distribution names and vendors' builds."""
BESIDE = {
    "core/test_floors.py": "reads all packages of the checkout",
    "core/test_configs.py": "reads configurations that name every plugin",
    "format/test_format_page.py": "reads a page of the docs",
    "contracts/test_verify.py": "test of another member, run with its package",
}
"""Tests of the core that are about the repository, and why."""
TOOLS = ("pytest-timeout", "hypothesis", "aiohttp", "numpy", "jsonschema")


@attrs.frozen
class Trial:
    """How one package fared."""

    name: str
    seconds: float
    versions: tuple[str, ...]
    told: tuple[str, ...]
    """What ran, and what was left out and why."""
    problem: str
    """"" when all is well."""


def requirements(package: Package) -> list[Requirement]:
    """What it needs, with the extra that its tests need."""
    texts = list(package.project.get("dependencies", []))
    if package.name in EXTRAS:
        texts += package.project["optional-dependencies"][EXTRAS[package.name]]
    return [Requirement(text) for text in texts]


def needs_torch(package: Package) -> bool:
    return any(each.name == "torch" for each in requirements(package))


def own(package: Package, every: dict[str, Package]) -> list[Package]:
    """Packages of this repository that it needs, itself last."""
    found = [every["kvhub"]]
    for need in requirements(package):
        if need.name in every:
            found += own(every[need.name], every)
    return list({each.name: each for each in [*found, package]}.values())


def lowest(needs: list[Requirement]) -> list[str]:
    """Requirements at their lowest version, in pip's words; ours are left out, they come as wheels."""
    pins = {}
    for need in needs:
        floors = [each.version for each in need.specifier if each.operator in (">=", "==", "~=")]
        if not need.name.startswith("kvhub"):
            pins[need.name] = f"{need.name}=={floors[0]}"
    return sorted(pins.values())


def tools(core: Package) -> list[str]:
    """What tests need: pytest at the lowest version that the core's extra declares, other tools at any that suits."""
    told = core.project["optional-dependencies"]["testing"]
    needs = map(Requirement, (ROOT / "tests" / "env" / "tools.txt").read_text().splitlines()[1:])
    return [*lowest([Requirement(each) for each in told]), *(str(need) for need in needs if need.name in TOOLS)]


@attrs.define
class Bench:
    """Tries packages, each in a folder of its own."""

    every: dict[str, Package]
    wheels: dict[str, Path]
    folder: Path

    def attempt(self, package: Package) -> Trial:
        """Install and try one."""
        began, told = time.monotonic(), list[str]()
        home = self.folder / package.name
        venv.create(home / "venv", with_pip=False)
        python = home / "venv" / "bin" / "python"
        needed = own(package, self.every)
        pins = lowest([need for each in needed for need in requirements(each)])
        light = [pin for pin in pins if not pin.startswith("torch==")]
        if light != pins:
            self._torch(next(pin for pin in pins if pin not in light), light, python)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input", "-q"]
        commands = [[*pip, "install", *light, *(str(self.wheels[each.name]) for each in needed)], [*pip, "check"]]
        commands.append([str(python), "-c", f"import {package.module}"])
        commands.append([str(python), "-m", "kvhub.cli", "plugins", "--json"])
        also = [str(self.wheels[name]) for name in COMPANIONS.get(package.name, [])]
        commands.append([*pip, "install", *light, *tools(needed[0]), *also])
        commands += self._contracts(package, python, home)
        commands.append(self._tests(package, python, home, told))
        problem = ""
        for command in commands:
            problem = problem or _run(command, home, told)
        if package.name in PEERS:
            told.append(f"without {PEERS[package.name]}, which no package declares: `make test` has it")
        return Trial(package.name, time.monotonic() - began, tuple(pins), tuple(told), problem)

    def _torch(self, pin: str, light: list[str], python: Path) -> None:
        """Its lowest torch, with which the registry brings gigabytes of CUDA: once for all packages of that version."""
        shared = self.folder / pin
        if not shared.exists():
            numpy = [each for each in light if each.startswith("numpy==")]
            command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(shared), pin, *numpy]
            done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
            if done.returncode:
                raise SystemExit(f"{pin} cannot be installed:\n{done.stderr[-3000:]}")
        site = sysconfig.get_path("purelib", vars={"base": str(python.parents[1]), "platbase": str(python.parents[1])})
        (Path(site) / "torch_floor.pth").write_text(f"{shared}\n")

    def _contracts(self, package: Package, python: Path, home: Path) -> list[list[str]]:
        found = []
        for number, (use, options, level, kind) in enumerate(CONTRACTS.get(package.name, [])):
            place = home / f"kv-{number}"
            place.mkdir()
            (home / f"{number}.yaml").write_text(options.replace("FOLDER", str(place)))
            words = ["-q", "-p", "no:cacheprovider", "--kvhub-use", use, "--kvhub-level", level]
            words += ["--kvhub-options", f"{number}.yaml", *(["--kvhub-kind", kind] if kind else [])]
            found.append([str(python), "-m", "pytest", *words])
        return found

    def _tests(self, package: Package, python: Path, home: Path, told: list[str]) -> list[str]:
        """The package's own tests, from a copy of them: nothing of the checkout's code is to be found from there."""
        checkout = home / "checkout"
        skipped = shutil.ignore_patterns("__pycache__", "models", "demo*", "uml", "benchmarks")
        shutil.copytree(ROOT / "tests", checkout / "tests", ignore=skipped)
        shutil.copytree(ROOT / "docs", checkout / "docs")
        for name in (".s3-server", ".ucx-system"):
            if (ROOT / name).exists():
                (checkout / name).symlink_to(ROOT / name)
        (checkout / "pytest.ini").write_text(
            "[pytest]\npythonpath = tests\naddopts = --import-mode=importlib --strict-markers\nmarkers =\n    vllm\n"
            "    sglang\n    alone\n    slow\n"
        )
        if package.name == "kvhub":
            which = [f"tests/{name}" for name in CORE_TESTS]
            told += [f"left out tests/{name}: {why}" for name, why in BESIDE.items()]
        else:
            which = [str(package.folder.relative_to(ROOT) / "tests")]
            shutil.copytree(package.folder / "tests", checkout / which[0], ignore=skipped)
        words = ["-q", "-rfEs", "-p", "no:cacheprovider", "--timeout", "180"]
        words += ["-m", "not slow and not vllm and not alone"]
        where = ["--rootdir", str(checkout), "-c", str(checkout / "pytest.ini")]
        without = [f"--ignore={checkout / 'tests' / name}" for name in BESIDE]
        return [str(python), "-m", "pytest", *where, *words, *without, *(str(checkout / each) for each in which)]


def _run(command: list[str], folder: Path, told: list[str]) -> str:
    """Run it; why it failed, or ""."""
    environment = {n: text for n, text in os.environ.items() if not n.startswith(("PYTHON", "VIRTUAL", "PYTEST"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)
    said = " ".join(command[1:])
    if "pytest" in command:
        told += _sum(done.stdout) if done.stdout else []
        # A folder of tests that all need an engine that is not here is said, not failed.
        without = re.search(r"Skipped: (.*)", done.stderr)
        if done.returncode != 0 and without is not None and not done.stdout:
            told.append(f"left out all tests: {without[1]}")
            return ""
    if done.returncode:
        return f"{said}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    if command[-2:] == ["plugins", "--json"]:
        broken = [row for row in json.loads(done.stdout) if "broken" in row]
        return f"{said}: {broken}" if broken else ""
    return ""


def _sum(printed: str) -> list[str]:
    """The last line of pytest and its reasons for skips."""
    lines = printed.splitlines()
    skips = [re.sub(r"^SKIPPED \[(\d+)\] (?:\S*/)?(\S+?:)?\d*:? ?", r"left out \1 times: \2 ", line) for line in lines
             if line.startswith("SKIPPED")]  # fmt: skip
    return [*lines[-1:], *dict.fromkeys(skips)]
