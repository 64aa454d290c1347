"""A disk that takes no checkpoint: one clear error, and every rollout has ended."""

import errno

import pytest

from treadle.core.errors import StoreError
from treadle.pipeline.checkpoints import Checkpoints


def checkpoints(bench, folder):
    return Checkpoints(folder, trainer=bench.trainer, thread=bench.thread, ledger=bench.ledger)


def test_a_folder_that_cannot_be_made_is_a_store_error(bench, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreError, match=r"taken/checkpoints cannot be made: Not a directory; free some disk space"):
        bench.set(updates=2).run(checkpoints=checkpoints(bench, tmp_path / "taken" / "checkpoints"))
    assert set(bench.shelf.ends.values()) == {1}


def test_a_checkpoint_that_the_disk_refuses_stops_the_run_and_leaves_the_one_before(bench, tmp_path):
    save = bench.trainer.save

    def full_at_the_second(folder, *, beside):
        if bench.trainer.saved:
            raise StoreError(f"checkpoint {folder}: cannot write ({OSError(errno.ENOSPC, 'No space left on device')})")
        save(folder, beside=beside)

    bench.trainer.save = full_at_the_second
    with pytest.raises(StoreError, match="No space left on device"):
        bench.set(lag=1, updates=6, save_every=2).run(checkpoints=checkpoints(bench, tmp_path / "checkpoints"))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["version-000002"]
    assert [e["version"] for e in bench.ears.named("checkpoint.saved")] == [2]
    assert set(bench.shelf.ends.values()) == {1}
