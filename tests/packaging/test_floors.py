"""The short form of `make test-packages`: one package at its lowest declared versions, with its own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from building import packages
from floors import trials
from packaging.requirements import Requirement
from trial import lowest, needs_torch, own


@pytest.mark.timeout(900)  # an index is asked and packages are built
@pytest.mark.parametrize("name", ["kvhub-zstd"])
def test_a_package_passes_its_own_tests_alone_at_its_lowest_versions(name: str, tmp_path: Path) -> None:
    (trial,) = trials([name], tmp_path)
    assert not trial.problem, trial.problem
    assert any(" passed" in line and "failed" not in line for line in trial.told), trial.told
    assert "attrs==24.1" in trial.versions


def test_floors_are_taken_word_for_word_and_ours_come_as_wheels() -> None:
    needs = [Requirement(text) for text in ("b>=2,<3", "a>=1.5", "kvhub>=0.1,<0.2", "c==7")]
    assert lowest(needs) == ["a==1.5", "b==2", "c==7"]


def test_an_adapter_brings_the_kernels_and_its_torch_is_seen() -> None:
    every = {package.name: package for package in packages()}
    assert [each.name for each in own(every["kvhub-vllm"], every)] == ["kvhub", "kvhub-kernels", "kvhub-vllm"]
    assert {name for name, package in every.items() if needs_torch(package)} == {
        "kvhub-kernels", "kvhub-vllm", "kvhub-sglang",
    }  # fmt: skip
