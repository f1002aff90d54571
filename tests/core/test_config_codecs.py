"""Codecs in the file: entries, steps that name them, and every way in which that can be wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from format import toys

from kvhub import ConfigError, PluginError, hookimpl
from kvhub.cli import main
from kvhub.codec import Codec
from kvhub.config import Config, load
from kvhub.plugins import Registry

TEXT = """\
kvhub: 1
codecs:
  secret: {use: toy/seal, key: TOY_KEY}
stores:
  host: {use: host, capacity: 1GiB}
  pool: {use: dir, root: /mnt/kv}
  cold: {use: dir, root: /mnt/cold}
transports:
  wire: {use: link}
roles:
  prefill:
    store:    [host, wire, {to: pool, codec: secret}]
    retrieve: [host, cold, {from: pool, promote: [cold]}]
  decode:
    store:    [host, {to: pool, codec: secret}, {to: cold, codec: toy}]
    retrieve: [host, wire, pool]
"""


@pytest.fixture
def read(tmp_path: Path, registry: Registry) -> Any:
    registry.add("toy", toys.plugin())
    path = tmp_path / "pd.yaml"

    def read(text: str = TEXT, *, role: str | None = None, environ: dict[str, str] | None = None) -> Config:
        path.write_text(text)
        return load(path, registry, role=role, environ=environ or {})

    return read


@pytest.mark.parametrize("role", [None, "prefill", "decode"])
def test_every_role_knows_every_codec_of_the_file(read: Any, role: str | None) -> None:
    """A prefill that promotes to a store which only decode stores to must encode there, too."""
    config = read(role=role)
    assert {name: codec.cls for name, codec in config.encodings.codecs.items()} == {
        "secret": toys.Seal,
        "toy": toys.Turn,
    }
    assert dict(config.encodings.by_store) == {"pool": ("secret",), "cold": ("toy",)}
    assert config.encodings.codecs["secret"].options == toys.SealOptions("TOY_KEY")
    assert config.encodings.lossy == ()
    shown = dict(config.values())
    assert shown["codecs.secret.use"] == "toy/seal" and shown["codecs.toy.by"] == 0x55
    assert shown["roles.decode.store[1].codec"] == "secret"
    assert config.origin["codecs.secret.key"] == "pd.yaml:3"


def test_options_come_from_the_environment_as_elsewhere(read: Any) -> None:
    config = read(environ={"KVHUB_CODECS__SECRET__KEY": "OTHER"})
    assert config.encodings.codecs["secret"].options.key == "OTHER"
    assert config.origin["codecs.secret.key"] == "environment KVHUB_CODECS__SECRET__KEY"
    with pytest.raises(ConfigError, match=r"the file has no codecs\.sekret; did you mean 'KVHUB_CODECS__SECRET__"):
        read(environ={"KVHUB_CODECS__SEKRET__KEY": "OTHER"})
    with pytest.raises(ConfigError, match="names no option; one would be KVHUB_CODECS__ZSTD__LEVEL"):
        read(environ={"KVHUB_CODECS": "{}"})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("codec: toy", "codec: secrt", "roles.decode.store[2].codec: unknown codec 'secrt'; did you mean 'secret'?"),
        ("codec: toy", "codec: tpy", "roles.decode.store[2].codec: unknown plugin 'tpy'; did you mean 'toy'?"),
        ("codec: toy", "codec: toy/rond", "plugin 'toy' has no codec 'toy/rond'; did you mean 'toy/round'?"),
        ("codec: toy", "codec: dir", "roles.decode.store[2].codec: plugin 'dir' brings no codec"),
        ("codec: toy", "codec: 7", "roles.decode.store[2].codec: expected a codec's name"),
        ("codec: toy", "codec: toy/seal", "'toy/seal' needs options (key); give it an entry in 'codecs'"),
        ("codec: toy", "codek: toy", "roles.decode.store[2].codek: unknown key; did you mean 'codec'?"),
        ("use: toy/seal", "use: toy/sael", "codecs.secret.use: plugin 'toy' has no codec 'toy/sael'; did you mean"),
        ("key: TOY_KEY", "kye: TOY_KEY", "codecs.secret.kye: unknown option; did you mean 'key'? (pd.yaml:3)"),
        ("key: TOY_KEY", "key: 7", "codecs.secret.key: expected text, found the number 7"),
        ("use: toy/seal, ", "", "codecs.secret.use: required: the plugin that brings this codec"),
        ("{use: toy/seal, key: TOY_KEY}", "toy", "codecs.secret: expected a mapping with 'use: ...', found"),
        ("  secret: {", "  SECRET: {", "codecs.SECRET: a codec's name is at most 32"),
        ("[host, wire, {", "[host, {to: wire, codec: secret}, {", "'wire' is a transport: peers pull chunks as they"),
        ("store:    [host, {", "store:    [{to: host, codec: secret}, {", "is the host tier, which engines copy from"),
        ("{from: pool, promote", "{from: pool, codec: secret, promote", "retrieve[2].codec: unknown key"),
        ("wire, {to: pool, codec: secret}", "wire, pool", "codec 'secret' here and no codec at roles.prefill"),
        ("wire, {to: pool, codec: secret}", "wire, {to: pool, codec: toy}", "codec 'toy' at roles.prefill.store[2]"),
        ("codecs:\n", "codecs: []\nother:\n", "codecs: expected a mapping, found a list"),
    ],
)  # fmt: skip
def test_E01_mistakes_stop_the_start_by_name(read: Any, old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        read(TEXT.replace(old, new, 1))
    assert any(said in problem for problem in caught.value.problems), caught.value.problems


def test_all_problems_are_told_at_once(read: Any) -> None:
    wrong = TEXT.replace("codec: toy", "codec: tpy").replace("key: TOY", "kye: TOY").replace("root: /mnt/kv", "rot: /x")
    with pytest.raises(ConfigError) as caught:
        read(wrong)
    places = {problem.split(": ")[0] for problem in caught.value.problems}
    assert {"codecs.secret.kye", "codecs.secret.key", "roles.decode.store[2].codec", "stores.pool.rot"} <= places


def test_an_entry_goes_before_a_plugin_of_its_name(read: Any) -> None:
    config = read(TEXT.replace("codecs:\n", "codecs:\n  toy: {use: toy, by: 3}\n"))
    assert config.encodings.codecs["toy"].options.by == 3


def test_A07_lossy_codecs_are_told_by_what_changes_numbers(read: Any) -> None:
    """Those that some step names, of any role, whatever they are called and however often they are named."""
    lossy = TEXT.replace("codec: toy", "codec: mine").replace(
        "codecs:\n", "codecs:\n  mine: {use: toy/round, bits: 3}\n"
    )
    assert read(lossy).encodings.lossy == read(lossy, role="prefill").encodings.lossy == ("round 3",)
    assert read(lossy.replace("codec: mine", "codec: toy")).encodings.lossy == (), "an entry alone changes nothing"


def test_check_shows_codecs_and_what_they_do_to_the_namespace(dists: Any, tmp_path: Path, capsys: Any) -> None:
    source = (
        "import attrs\nfrom kvhub import hookimpl\nfrom kvhub.codec import Codec\n"
        "@attrs.frozen\nclass O:\n    bits: int = 4\n"
        "class R(Codec):\n    name, code, lossy, Config = 'round', 140, True, O\n"
        "    def encode(self, payload, about): return None\n    def decode(self, stored, room, about): return 0\n"
        "@hookimpl\ndef kvhub_register_codecs(): return (R,)\n"
    )
    dists.add("round-kv", "round", source)
    dists.add("store-kv", "dir")
    path = tmp_path / "one.yaml"
    path.write_text(
        "kvhub: 1\nstores: {pool: {use: dir, root: /x}}\n"
        "roles: {both: {store: [{to: pool, codec: round}], retrieve: [pool]}}\n"
    )
    assert main(["check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "pool: keeps chunks encoded by round (round, lossy)" in out
    assert "namespace: marked with lossy codec round; shares no chunk with" in out
    assert ["codecs.round.bits", "4", "default"] in [line.split() for line in out.splitlines()]
    assert main(["check", str(path), "--json"]) == 0
    assert '"lossy": [\n  "round"\n ]' in capsys.readouterr().out
    assert main(["plugins"]) == 0
    assert "codec round" in capsys.readouterr().out


def codec(**words: Any) -> type[Codec]:
    """A codec class with these attributes instead of good ones."""
    return type("Odd", (toys.Turn,), words)


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (codec(code=0), "Odd.code must be a number from 1 to 255, found 0"),
        (codec(code=256), "found 256"),
        (codec(code=True), "found True"),
        (codec(code=None), "found None"),
        (codec(name=""), "Odd.name must be a short word"),
        (codec(name="a b"), "Odd.name must be a short word"),
        (codec(lossy="no"), "Odd.lossy must be True or False, found 'no'"),
        (codec(Config=None), "Odd has no Config; give it a frozen attrs class"),
        (codec(Config=dict), "Odd.Config is not an attrs class"),
        (type("Half", (Codec,), {"name": "h", "code": 9, "Config": toys.TurnOptions}), "does not implement decode"),
        (type("Lone", (), {}), "returned Lone, which is no Codec; subclass it"),
        (attrs.frozen, "in its list; return classes, not instances"),
    ],
)
def test_a_codec_that_cannot_be_is_refused(cls: type, said: str) -> None:
    hook = hookimpl(lambda: (cls,), specname="kvhub_register_codecs")
    with pytest.raises(PluginError) as caught:
        Registry().add("odd", SimpleNamespace(kvhub_register_codecs=hook))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (codec(name="other"), "Odd has code 200, which Turn of format.toys has; give it another"),
        (codec(code=99), "Odd and Turn are both called 'turn'; rename one"),
    ],
)
def test_two_codecs_of_one_name_or_code_are_refused(cls: type[Codec], said: str) -> None:
    """Across plugins and inside one; the first stays usable."""
    registry = Registry()
    registry.add("toy", toys.plugin())
    for name, classes in (("odd", (cls,)), ("pair", (codec(name="x", code=98), codec(name="x", code=97)))):
        hook = hookimpl(lambda classes=classes: classes, specname="kvhub_register_codecs")
        with pytest.raises(PluginError, match=said if name == "odd" else "both called 'x'"):
            registry.add(name, SimpleNamespace(kvhub_register_codecs=hook))
    assert registry.codec("toy") is toys.Turn
