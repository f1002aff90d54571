"""Plugins that are really installed: each fault is one sentence, and the good ones beside them work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from discovery.faulty import FAULTS, GOOD
from discovery.wheels import Environment, Wheel

GOOD_ONE = Wheel("acme-store", {"acme": "acme"}, {"acme": GOOD})
SLOW = Wheel("acme-slow", {"slow": "acme_slow"}, {"acme_slow": "import time\ntime.sleep(0.3)\n" + GOOD})
STRICT = Wheel(
    "acme-strict", {"strict": "acme_strict"}, {"acme_strict": GOOD.replace('root: str = "/tmp"', "root: str")}
)
DUPLICATES = [
    Wheel("acme-first", {"same": "acme_first"}, {"acme_first": GOOD}),
    Wheel("acme-second", {"same": "acme_second"}, {"acme_second": GOOD}, version="2.0"),
]
LIAR = Wheel(
    "acme-liar",
    {"liar": "acme_liar"},
    {
        "acme_liar": GOOD.replace(
            "class Kept(BlockingStore):\n",
            "class Kept(BlockingStore):\n    capabilities = property(lambda self: Capabilities(removes=True))\n",
        )
    },
)
DUPLICATE = "plugin 'same' is provided by acme-first 1.0 and by acme-second 2.0; uninstall all but one"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("discovery"))
    made.install(GOOD_ONE, SLOW, STRICT, LIAR, *DUPLICATES, *(fault.wheel for fault in FAULTS.values()))
    return made


@pytest.fixture(scope="module")
def listed(environment: Environment) -> dict[str, dict[str, object]]:
    done = environment.kvhub("plugins", "--json")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize("name", FAULTS)
def test_E06_E16_each_fault_is_one_sentence_word_for_word(listed: dict[str, dict[str, object]], name: str) -> None:
    assert listed[name].get("broken") == FAULTS[name].said


def test_the_good_ones_beside_them_work_and_a_slow_one_is_told(environment: Environment, listed: dict) -> None:
    assert listed["acme"]["stores"] == ["acme"] and "broken" not in listed["acme"]
    assert listed["slow"]["stores"] == ["slow"]
    assert listed["slow"]["import_seconds"] >= 0.3 > listed["acme"]["import_seconds"]
    lines = {line.split()[0]: " ".join(line.split()) for line in environment.kvhub("plugins").stdout.splitlines()}
    assert lines["slow"].startswith("slow acme-slow 1.0 store slow; SLOW: its import takes 0.")
    assert "SLOW" not in lines["acme"]
    assert listed["same"]["broken"] == DUPLICATE


def check(environment: Environment, text: str, **environ: str) -> list[str]:
    """Problems of a file with this store; empty for a good one."""
    path = environment.python.parents[2] / "one.yaml"
    path.write_text(f"kvhub: 1\n{text}\nroles: {{both: {{store: [pool], retrieve: [pool]}}}}\n")
    done = environment.kvhub("check", str(path), "--json", **environ)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    assert "Traceback" not in done.stderr
    return list(report.get("problems", []))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("acme", ""),
        ("typeerror", FAULTS["typeerror"].said),
        ("toonew", FAULTS["toonew"].said),
        ("misspelt", FAULTS["misspelt"].said),
        ("same", DUPLICATE),
        ("acne", "unknown plugin 'acne'; did you mean 'acme'?; kvhub plugins lists all"),
        ("sglang", "plugin 'sglang' is not installed; pip install kvhub-sglang"),
        (
            "acme_module:Kept",
            "'acme_module:Kept' is no plugin's name: a file names installed plugins, never modules, classes or paths; "
            "known: ",
        ),
    ],
)
def test_E13_a_selected_one_stops_the_start_with_one_problem(environment: Environment, use: str, said: str) -> None:
    found = check(environment, f"stores: {{pool: {{use: '{use}'}}}}")
    if not said:
        assert found == []
    elif said.endswith(": "):
        assert len(found) == 1 and found[0].startswith(f"stores.pool.use: {said}")
    else:
        assert found == [f"stores.pool.use: {said} (one.yaml:2)"]


def test_options_without_a_default_are_asked_for_by_name(environment: Environment) -> None:
    assert check(environment, "stores: {pool: {use: strict}}") == ["stores.pool.root: required (one.yaml:2)"]
    assert check(environment, "stores: {pool: {use: strict, root: /x}}") == []


def test_a_distribution_that_is_not_allowed_is_refused_before_its_import(environment: Environment) -> None:
    """The refused one would end the process if it were imported."""
    allowed = "plugins: {allow: [Acme_Store]}\n"
    assert check(environment, f"{allowed}stores: {{pool: {{use: acme}}}}") == []
    said = (
        "stores.pool.use: plugin 'exits' (acme-exits 1.0) was not imported: plugins.allow has Acme_Store; "
        "add 'acme-exits' there if you trust it, or use another plugin (one.yaml:3)"
    )
    assert check(environment, f"{allowed}stores: {{pool: {{use: exits}}}}") == [said]
    # A list that has one of two namesakes makes the name mean that one.
    assert check(environment, "plugins: {allow: [acme-second]}\nstores: {pool: {use: same}}") == []
    # One rule for all variables: this one wins over the file, too.
    by_environment = {"KVHUB_PLUGINS__ALLOW": "[acme-strict]"}
    [found] = check(environment, f"{allowed}stores: {{pool: {{use: acme}}}}", **by_environment)
    assert "(acme-store 1.0) was not imported: plugins.allow has acme-strict; add 'acme-store' there" in found


def test_the_environment_s_list_holds_for_commands_without_a_file(environment: Environment) -> None:
    done = environment.kvhub("plugins", "--json", KVHUB_PLUGINS__ALLOW="[acme-store]")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert "broken" not in rows["acme"] and "broken" not in rows["host"]
    assert "was not imported: plugins.allow has acme-store" in rows["exits"]["broken"]
    assert environment.kvhub("plugins", KVHUB_PLUGINS__ALLOW="acme-store").returncode == 1


def test_E16_a_store_that_claims_what_it_cannot_do_does_not_start(environment: Environment, tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(START)
    done = environment.run(str(script))
    said = "pool: claims removes, and does not define drop(); this is a fault of the plugin, tell its authors"
    assert done.stdout.strip().splitlines()[-1] == said, done.stderr


START = """
from kvhub import KvhubError
from kvhub.engine import EngineFacts
from kvhub.hub import Hub
from kvhub.keys import Namespace
from kvhub.layout import Layout

layout = Layout("opaque", 1, 16, opaque_bytes=4096)
facts = EngineFacts("none 1", "both", Namespace("m", "r", "uint8", layout.text, chunk_tokens=64), layout, 16)
file = {
    "kvhub": 1,
    "stores": {"pool": {"use": "liar"}},
    "roles": {"both": {"store": ["pool"], "retrieve": ["pool"]}},
    "limits": {"staging": "1MiB"},
}
try:
    Hub.open(file, facts)
except KvhubError as error:
    print(error)
"""
