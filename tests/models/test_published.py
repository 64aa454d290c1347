"""Published weights: what is written, what a reader refuses, and that a copy is a copy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from treadle.core.errors import StoreError, WeightMismatch
from treadle.core.ports import WeightRef
from treadle.models import Policy, build_tiny
from treadle.models.canary import Canary, listen
from treadle.models.published import FACTS, WEIGHTS, checksum, publish, read, sums, take, tensors


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy.load(build_tiny(tmp_path / "model", hidden=32))


@pytest.fixture
def copy(tmp_path: Path) -> Policy:
    return Policy.load(build_tiny(tmp_path / "copy", hidden=32, seed=9))


def advance(policy: Policy) -> None:
    with policy.gate.write("update"), torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(1.01)
        policy.version += 1


def test_a_copy_has_the_tensors_and_the_version_that_were_published(
    policy: Policy, copy: Policy, tmp_path: Path
) -> None:
    advance(policy)
    ref = publish(policy, tmp_path / "v1")
    found = read(ref)
    assert sums(copy) != sums(policy)
    take(copy, found.folder, found.version)
    found.check(sums(copy), who="the copy")
    assert (ref.version, found.version, copy.version) == (1, 1, 1)
    assert all(a.equal(b) for a, b in zip(tensors(policy).values(), tensors(copy).values(), strict=True))
    assert listen(copy) == found.canary


def test_a_tied_tensor_is_written_once(policy: Policy, tmp_path: Path) -> None:
    publish(policy, tmp_path / "v")
    written = load_file(tmp_path / "v" / WEIGHTS)
    assert sorted(written) == sorted(tensors(policy))
    assert "lm_head.weight" not in written
    assert len(written) == sum(1 for _ in policy.module.parameters())


def test_publishing_again_replaces_and_leaves_nothing_else(policy: Policy, tmp_path: Path) -> None:
    for _ in range(2):
        publish(policy, tmp_path / "weights" / "v")
    assert [p.name for p in (tmp_path / "weights").iterdir()] == ["v"]
    assert sorted(p.name for p in (tmp_path / "weights" / "v").iterdir()) == [FACTS, WEIGHTS]


def test_the_first_tensor_that_differs_is_named_with_both_checksums(policy: Policy, tmp_path: Path) -> None:
    found = read(publish(policy, tmp_path / "v"))
    name = sorted(found.sums)[3]
    with pytest.raises(WeightMismatch, match=rf"{name} has checksum 00ff in a copy, {found.sums[name]} was published"):
        found.check({**found.sums, name: "00ff"}, who="a copy")
    with pytest.raises(WeightMismatch, match="stray has checksum 00ff in a copy, none was published"):
        found.check({**found.sums, "stray": "00ff"}, who="a copy")


def test_a_checksum_knows_shape_format_and_every_byte() -> None:
    plain = torch.arange(6.0)
    others = [plain.reshape(2, 3), plain.double(), plain.flip(0), torch.cat([plain, plain[:0]])]
    assert [checksum(other) == checksum(plain) for other in others] == [False, False, False, True]
    assert checksum(plain.to(torch.bfloat16)) == checksum(plain.to(torch.bfloat16).clone())
    assert checksum(torch.tensor(1.0)) != checksum(torch.tensor([1.0]))
    assert len(checksum(torch.empty(0))) == 16


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ref: replace(ref, version=7), r"policy version 0 is there, 7 was published"),
        (lambda ref: replace(ref, checksum="00ff"), r"has checksum \w+, 00ff was published as version 0"),
        (lambda ref: replace(ref, path=f"{ref.path}-nowhere"), "cannot be read"),
    ],
)
def test_a_reference_to_something_else_is_refused(policy: Policy, tmp_path: Path, change, said: str) -> None:
    ref: WeightRef = publish(policy, tmp_path / "v")
    with pytest.raises(WeightMismatch, match=said):
        read(change(ref))


def test_facts_that_are_no_facts_are_refused(policy: Policy, tmp_path: Path) -> None:
    ref = publish(policy, tmp_path / "v")
    (tmp_path / "v" / FACTS).write_text(json.dumps({"version": 0}), encoding="utf-8")
    with pytest.raises(WeightMismatch, match="cannot be read"):
        read(ref)


def test_a_tensor_that_is_missing_or_has_another_shape_is_refused(policy: Policy, tmp_path: Path) -> None:
    publish(policy, tmp_path / "v")
    path = tmp_path / "v" / WEIGHTS
    whole = load_file(path)
    save_file({n: t for n, t in whole.items() if n != "model.norm.weight"}, path)
    with pytest.raises(WeightMismatch, match=r"\d+ tensors were published.*only one of them has is model\.norm"):
        take(policy, tmp_path / "v", 1)
    save_file({**whole, "model.norm.weight": whole["model.norm.weight"][:-1].clone()}, path)
    with pytest.raises(WeightMismatch, match=r"model\.norm\.weight: .*\(31,\) was published, the engine has .*\(32,\)"):
        take(policy, tmp_path / "v", 1)
    assert policy.version == 0


def test_a_file_that_ends_in_its_middle_is_refused(policy: Policy, tmp_path: Path) -> None:
    ref = publish(policy, tmp_path / "v")
    path = tmp_path / "v" / WEIGHTS
    path.write_bytes(path.read_bytes()[:999])
    with pytest.raises(WeightMismatch, match=r"has 999 bytes, \d+ were published; it was half written"):
        read(ref)
    with pytest.raises(WeightMismatch, match="cannot be read"):
        take(policy, tmp_path / "v", 0)


def test_a_disk_that_refuses_is_a_store_error(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        publish(policy, tmp_path / "file" / "v")


def test_the_canary_is_the_same_every_time_and_comes_back_from_json(policy: Policy, copy: Policy) -> None:
    said = listen(policy)
    assert said == listen(policy)
    assert Canary.of(json.loads(json.dumps(said.flat()))) == said
    assert [point.prompt for point in said.points] == [point.prompt for point in listen(copy).points]
    assert max(abs(a.logprob - b.logprob) for a, b in zip(said.points, listen(copy).points, strict=True)) > 1e-2
    assert len({len(point.prompt) for point in said.points}) == 4
