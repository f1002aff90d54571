"""Wheels with one fault each, and the sentence that each is refused with, word for word."""

from __future__ import annotations

import attrs
from discovery.wheels import Wheel

STORE = """
import attrs
from kvhub import Capabilities, hookimpl
from kvhub.store import BlockingStore, Store
from kvhub.transport import Transport

@attrs.frozen
class Options:
    root: str = "/tmp"

class Kept(BlockingStore):
    Config = Options
    def has(self, name): return False
    def read(self, name, header, payload): return None
    def write(self, name, header, payload): return True
    def used_bytes(self): return None
"""
GOOD = (
    STORE
    + """
@hookimpl
def kvhub_register_stores():
    return (Kept,)
"""
)


@attrs.frozen
class Fault:
    """A wheel, and what the registry says of it."""

    wheel: Wheel
    said: str


def _fault(name: str, said: str, source: str = GOOD, entry: str = "", requires: tuple[str, ...] | None = None) -> Fault:
    project, module = f"acme-{name}", f"acme_{name}"
    needs = ("kvhub>=0.1,<0.2",) if requires is None else requires
    wheel = Wheel(project, {name: entry or module}, {module: source}, requires=needs)
    return Fault(wheel, f"plugin '{name}' ({project} 1.0){said}")


def _hook(body: str) -> str:
    return STORE + body


FAULTS = {
    "typeerror": _fault(
        "typeerror", " cannot be imported: TypeError: protobuf clash", "raise TypeError('protobuf clash')"
    ),
    "exits": _fault("exits", " cannot be imported: SystemExit: 3", "raise SystemExit(3)"),
    "syntax": _fault(
        "syntax", " cannot be imported: SyntaxError: invalid syntax (acme_syntax.py, line 1)", "def broken(:"
    ),
    "needs": _fault(
        "needs",
        " cannot be imported: it needs the module 'a_library_that_is_gone', which is not installed",
        "import a_library_that_is_gone",
    ),
    "gone": _fault(
        "gone",
        " cannot be imported: it needs the module 'never_written', which is not installed",
        entry="never_written",
    ),
    "noattr": _fault(
        "noattr",
        " cannot be imported: AttributeError: module 'acme_noattr' has no attribute 'plugin'",
        entry="acme_noattr:plugin",
    ),
    "tooold": _fault(
        "tooold",
        " needs kvhub <0.1, and this is kvhub 0.1.0; install a release of acme-tooold that fits, or change kvhub",
        requires=("kvhub<0.1",),
    ),
    "toonew": _fault(
        "toonew",
        " needs kvhub <8,>=7, and this is kvhub 0.1.0; install a release of acme-toonew that fits, or change kvhub",
        requires=("kvhub>=7,<8",),
    ),
    "norange": _fault(
        "norange",
        " states no range for kvhub, so nobody knows whether it fits; "
        "its authors must declare one, as 'kvhub>=0.1,<0.2'",
        requires=(),
    ),
    "misspelt": _fault(
        "misspelt",
        ": 'kvhub_register_storse' is no hook of kvhub; did you mean 'kvhub_register_stores'?",
        _hook("@hookimpl\ndef kvhub_register_storse():\n    return (Kept,)\n"),
    ),
    "unmarked": _fault(
        "unmarked",
        ": 'kvhub_register_stores' is not marked as a hook; write @kvhub.hookimpl above it",
        _hook("def kvhub_register_stores():\n    return (Kept,)\n"),
    ),
    "argument": _fault(
        "argument",
        ": hook 'kvhub_register_stores' has an argument 'config' that kvhub does not give; it takes none",
        _hook("@hookimpl\ndef kvhub_register_stores(config):\n    return (Kept,)\n"),
    ),
    "argument2": _fault(
        "argument2",
        ": hook 'kvhub_hub_opened' has an argument 'hubb' that kvhub does not give; it may take hub",
        GOOD + "@hookimpl\ndef kvhub_hub_opened(hubb): pass\n",
    ),
    "nohook": _fault("nohook", ": implements no hook at all; a store's plugin has kvhub_register_stores", STORE),
    "raises": _fault(
        "raises",
        " cannot be registered: OSError: no such device",
        _hook("@hookimpl\ndef kvhub_register_stores():\n    raise OSError('no such device')\n"),
    ),
    "wrongclass": _fault(
        "wrongclass",
        ": kvhub_register_stores returned dict, which is no Store; subclass it",
        _hook("@hookimpl\ndef kvhub_register_stores():\n    return (dict,)\n"),
    ),
    "instance": _fault(
        "instance",
        ": kvhub_register_stores returned an object of object in its list; return classes, not instances",
        _hook("@hookimpl\ndef kvhub_register_stores():\n    return [object()]\n"),
    ),
    "onestore": _fault(
        "onestore",
        ": kvhub_register_stores returned the class Kept; return a tuple of classes, as (MyStore,)",
        _hook("@hookimpl\ndef kvhub_register_stores():\n    return Kept\n"),
    ),
    "nomethods": _fault(
        "nomethods",
        ": Kept does not implement write",
        GOOD.replace("    def write(self, name, header, payload): return True\n", ""),
    ),
    "noconfig": _fault(
        "noconfig",
        ": Kept has no Config; give it a frozen attrs class of its options",
        GOOD.replace("    Config = Options\n", ""),
    ),
    "plainconfig": _fault(
        "plainconfig",
        ": Kept.Config is not an attrs class; write @attrs.frozen above it",
        GOOD.replace("@attrs.frozen\n", ""),
    ),
    "unresolved": _fault(
        "unresolved",
        ": Kept.Config has annotations that cannot be resolved: NameError: name 'Nobody' is not defined",
        GOOD.replace('root: str = "/tmp"', 'root: "Nobody" = None'),
    ),
    "lies": _fault(
        "lies",
        ": Kept.persistent must be True or False, found 'yes'",
        GOOD.replace("    Config = Options\n", "    Config = Options\n    persistent = 'yes'\n"),
    ),
}
"""Name of the plugin -> its fault.  Nothing selects them: they are listed, and harm no other."""
