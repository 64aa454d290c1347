"""The publisher: what an engine may have to be started again with is there until the engine has something newer."""

import pytest

from treadle.core.errors import WeightMismatch
from treadle.learner.publisher import Publisher
from treadle.models.policy import Policy
from treadle.models.published import read


def test_the_last_weights_stay_until_newer_ones_were_loaded(tiny_folder, tmp_path):
    policy = Policy.load(tiny_folder)
    with Publisher(tmp_path / "weights") as publisher:
        refs = []
        for version in range(3):
            with policy.gate.write("a new version"):
                policy.version = version
            refs.append(publisher.publish(policy))
            assert [read(ref).version for ref in refs[-2:]] == [version - 1, version][-len(refs) :]
        with pytest.raises(WeightMismatch, match="version-000000: cannot be read"):
            read(refs[0])
        assert sorted(path.name for path in publisher.folder.iterdir()) == ["version-000001", "version-000002"]
    assert not publisher.folder.exists()


def test_what_a_killed_run_left_is_removed(tiny_folder, tmp_path):
    left = tmp_path / "weights" / "version-000007"
    left.mkdir(parents=True)
    with Publisher(tmp_path / "weights") as publisher:
        publisher.publish(Policy.load(tiny_folder))
        assert not left.exists()
