"""Transport laws, level "safe": claims are honest, misuse raises, and nothing listens or stays behind unasked."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import ClassVar

import attrs
import pytest

from kvhub.errors import MisuseError
from kvhub.testing import under
from kvhub.testing.driver import names
from kvhub.testing.region import make_key
from kvhub.testing.stage import CLOSE_WITHIN_S, Opens, Traces
from kvhub.testing.store_basic import chunks
from kvhub.testing.transport_basic import FAILED, OpensSite, Site, Sites
from kvhub.testing.transport_safety import split
from kvhub.transport import Transport
from kvhub.types import Batch, Capabilities, Op, Peer

KEY = make_key("misuse")
NOBODY = Peer("127.0.0.1:1", "nobody")
UNEQUAL = {
    "no slots": Batch(1, Op.LOAD, (KEY,), peer=NOBODY),
    "too few slots": Batch(1, Op.LOAD, (KEY, KEY), (0,), (10, 10), peer=NOBODY),
    "too few lengths": Batch(1, Op.LOAD, (KEY, KEY), (0, 1), (10,), peer=NOBODY),
    "too many slots": Batch(1, Op.LOAD, (KEY,), (0, 1), (10,), peer=NOBODY),
}


def listening() -> list[str]:
    """Addresses on which sockets of this process listen for TCP."""
    inodes = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue  # closed since it was listed
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                # The kernel prints an address as 32-bit words in its own byte order.
                raw = bytes.fromhex(fields[1].split(":")[0])
                words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
                found.append(str(ipaddress.ip_address(b"".join(words))))
    return found


class ClaimLaws(Sites):
    """What the transport says of itself is so."""

    loopback: ClassVar[bool] = True
    """Whether `member_factory` configures the transport to listen on loopback only."""

    @pytest.fixture
    def ours(self, open_site: OpensSite) -> Site:
        return open_site("ours")

    def test_is_a_transport_with_a_frozen_config(self, open_member: Opens) -> None:
        """The hub builds the configuration from YAML and hands the same object to every part."""
        member = open_member(attach=False).member
        assert isinstance(member, Transport)
        config = member.__class__.Config
        assert attrs.has(config), f"{config.__name__} is no attrs class"
        for field in attrs.fields(config):
            assert field.type is not None, f"{config.__name__}.{field.name} has no type"
        assert config.__setattr__ is not object.__setattr__, f"{config.__name__} is not frozen"

    def test_capabilities_are_fixed_and_modest(self, ours: Site, open_site: OpensSite) -> None:
        """A transport keeps nothing: who claims a store's powers would be routed to like one."""
        said = ours.transport.capabilities
        assert isinstance(said, Capabilities)
        assert not (said.persistent or said.removes or said.scans or said.arena), said
        theirs = open_site("theirs")
        theirs.offer(chunks(1))
        ours.driver.read([*chunks(1)], peer=theirs.peer())
        assert ours.transport.capabilities == said

    def test_address_form(self, ours: Site) -> None:
        """The address goes to other machines in a request: `host:port`, IPv6 in brackets, a real port."""
        address = ours.transport.address()
        host, port = split(address)
        assert 0 < port < 65536, address
        assert address == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        assert host not in ("", "0.0.0.0", "::"), f"{address}: nobody can connect to a wildcard"

    def test_each_has_its_own_address(self, ours: Site, open_site: OpensSite) -> None:
        """Several ranks of one machine listen side by side."""
        assert ours.transport.address() != open_site("second").transport.address()

    def test_listens_on_loopback_only(self, ours: Site) -> None:
        """Whoever reaches the port may read KV: it is open where it was asked to be and nowhere else."""
        if not self.loopback:
            self.leave_out("the transport under test is not configured for loopback")
        if not Path("/proc/self/net/tcp").exists():
            self.leave_out("this system has no /proc/net/tcp to look at")
        wide = [address for address in listening() if not ipaddress.ip_address(address).is_loopback]
        assert not wide, f"listens on {', '.join(wide)}"

    def test_healthy_when_well(self, ours: Site) -> None:
        """Empty means well; anything else is shown to operators as trouble."""
        assert ours.transport.healthy() == ""

    @pytest.mark.parametrize("op", [Op.FIND, Op.SAVE, Op.REMOVE])
    @under.without_meaning(full=under.UNSEEN, hanging=under.UNSEEN)
    def test_a_transport_only_loads(self, ours: Site, op: Op) -> None:
        """Chunks are offered and pulled; a SAVE that is silently dropped would look like a sink."""
        slots = [0] if op is Op.SAVE else []
        with pytest.raises(MisuseError):
            ours.driver.submit(op, [KEY], slots, [10] * len(slots), peer=NOBODY)

    @under.without_meaning(hanging=under.UNSEEN)
    def test_load_without_a_peer(self, ours: Site) -> None:
        """There is nobody to ask: misuse or FAILED, and never a wait."""
        try:
            batch = ours.driver.submit(Op.LOAD, [KEY], [0], [10])
        except MisuseError:
            return
        done = ours.driver.wait(batch, self.soon)
        assert done.outcomes == (FAILED,), names(done)

    @pytest.mark.parametrize("case", sorted(UNEQUAL))
    @under.without_meaning(hanging=under.UNSEEN)
    def test_unequal_tuples_raise(self, ours: Site, case: str) -> None:
        """A batch whose tuples do not match is a bug in the caller and must be seen where it is made."""
        with pytest.raises(MisuseError):
            ours.transport.submit(UNEQUAL[case])
        ours.driver.settle(0.02)

    @under.without_meaning(hanging=under.UNSEEN)
    def test_a_closed_transport_raises(self, ours: Site) -> None:
        """A batch to a closed transport would never end."""
        ours.driver.close()
        with pytest.raises(MisuseError):
            ours.driver.submit(Op.LOAD, [KEY], [0], [10], peer=NOBODY)

    def test_a_closed_transport_does_not_listen(self, open_site: OpensSite) -> None:
        """A port that stays open keeps the next start from listening."""
        before = sorted(listening())
        site = open_site("short-lived")
        site.driver.close()
        assert sorted(listening()) == before

    def test_close_is_idempotent_and_bounded(self, ours: Site) -> None:
        """Whatever ends an engine closes its hub, perhaps twice; it must not hang there."""
        assert max(ours.driver.close(), ours.driver.close()) < CLOSE_WITHIN_S

    def test_close_without_attach(self, open_member: Opens) -> None:
        """A start that failed at another member closes this one before it was attached."""
        assert open_member(attach=False).close() < CLOSE_WITHIN_S

    def test_close_without_serve(self, open_member: Opens) -> None:
        """A decode that serves nobody attaches and closes like any other."""
        assert open_member().close() < CLOSE_WITHIN_S

    def test_members_of_one_process_are_apart(self, ours: Site, open_site: OpensSite) -> None:
        """Hidden globals: closing one transport must not close another."""
        theirs, third, kept = open_site("theirs"), open_site("third"), chunks(2)
        theirs.offer(kept)
        third.driver.close()
        assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]

    def test_B19_close_leaves_nothing(self, open_site: OpensSite) -> None:
        """Threads, sockets and descriptors come back to where they were, also with pulls under way."""

        def live(name: str) -> None:
            ours, theirs = open_site(f"{name} ours"), open_site(f"{name} theirs")
            kept = chunks(4)
            theirs.offer(kept)
            assert ours.driver.read([*kept], peer=theirs.peer()) == [*kept.values()]
            theirs.source.begin(KEY)
            ours.pull([KEY], theirs.peer())
            for site in (ours, theirs):
                site.driver.close()
                site.source.close()

        live("warm")
        before = Traces()
        for n in range(3):
            live(f"life {n}")
        before.gone()
