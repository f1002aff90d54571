"""Tallies: what is known of a pool without listing it."""

from __future__ import annotations

import itertools
import random

import pytest

from kvhub.pool.medium import Entry, Medium
from kvhub.pool.pace import Pace, Stopped
from kvhub.pool.tally import Notes, Tally, bin_of, by_age, total

NOW = 1_800_000_000.0
DAY = 86400


def entry(number: int, used: float, size: int = 5000) -> Entry:
    return Entry(f"{number:064x}", size, used, None, number)


def test_bins_of_one_moment_do_not_overlap_and_widen_with_age() -> None:
    rng = random.Random(1)
    bins = sorted({bin_of(NOW - rng.expovariate(1 / (20 * DAY)), NOW) for _ in range(20_000)})
    for (start, width), (after, _) in itertools.pairwise(bins):
        assert start + width <= after
    assert bin_of(NOW - 10, NOW)[1] == 60 and bin_of(NOW - DAY, NOW)[1] == 600
    assert bin_of(NOW - 7 * DAY, NOW)[1] == 3600 and bin_of(NOW - 90 * DAY, NOW)[1] == DAY
    for used in (NOW - 1, NOW - 12345, NOW - 5 * DAY, NOW - 100 * DAY):
        start, width = bin_of(used, NOW)
        assert start <= used < start + width


def test_tallies_of_different_moments_add_up() -> None:
    rng, later = random.Random(2), NOW + 10 * DAY
    used = [NOW - rng.expovariate(1 / (10 * DAY)) for _ in range(2000)]
    early, direct = Tally(NOW), Tally(later)
    for number, moment in enumerate(used):
        early.add(entry(number, moment))
        direct.add(entry(number, moment))
    again = total([Tally.from_plain(early.plain())], later)
    assert (again.chunks, again.bytes, again.sizes) == (direct.chunks, direct.bytes, direct.sizes)
    assert again.bins == direct.bins and again.at == NOW
    assert sum(chunks for _, chunks, _ in by_age(again, later)) == 2000


def test_a_tally_stays_small_however_many_chunks_and_sizes() -> None:
    rng, tally = random.Random(3), Tally(NOW)
    for number in range(50_000):
        tally.add(entry(number, NOW - rng.uniform(0, 365 * DAY), rng.randrange(5000, 10**6)))
    assert len(tally.bins) < 2500 and len(tally.sizes) <= 65
    assert sum(tally.sizes.values()) == tally.chunks == 50_000


def test_tails_are_what_has_not_the_size_of_most() -> None:
    tally = Tally(NOW)
    for number in range(10):
        tally.add(entry(number, NOW))
    tally.add(entry(11, NOW, 4200))
    assert tally.tails == 1 and Tally(NOW).tails == 0


def test_notes_outlive_their_writer_and_forget_what_is_gone(medium: Medium) -> None:
    notes, tally = Notes(medium), Tally(NOW)
    tally.add(entry(1, NOW))
    notes.put("3f", {"a" * 32: tally, "b" * 32: tally}, ["a" * 32, "b" * 32])
    assert Notes(medium).get("3f").keys() == {"a" * 32, "b" * 32}
    notes.put("3f", {"b" * 32: Tally(NOW)}, ["b" * 32])
    kept = Notes(medium).get("3f")
    assert kept.keys() == {"b" * 32} and kept["b" * 32].chunks == 0


@pytest.mark.parametrize("data", [b"", b"nonsense", b"[]", b'{"version": 9}', b'{"version": 1, "spaces": {"a": {}}}'])
def test_C10_a_note_that_cannot_be_read_is_measured_again(medium: Medium, data: bytes) -> None:
    medium.put_note("tally-3f", data)
    assert Notes(medium).get("3f") == {}


def test_a_pace_is_kept_over_a_second_and_ends_at_once() -> None:
    pace = Pace(rate=1000.0, bandwidth=10.0)
    assert pace._after("objects", 0) == 0.0
    waits = [pace._after("objects", 100) for _ in range(30)]
    assert waits[5] <= 0 < waits[-1] and waits[-1] == pytest.approx(2.0, abs=0.2)
    pace.stop()
    with pytest.raises(Stopped):
        pace.take(size=10**9)
