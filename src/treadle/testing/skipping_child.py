"""An engine's process whose loader forgets one tensor: started by tests and benchmarks in place of the real one."""

from __future__ import annotations

from pathlib import Path

from treadle.inference.child import main
from treadle.models.policy import Policy
from treadle.models.published import take, tensors


def forgetful(policy: Policy, folder: Path, version: int) -> None:
    """As `take`, but the last tensor stays as it was."""
    last = list(tensors(policy).values())[-1]
    kept = last.detach().clone()
    take(policy, folder, version)
    with policy.gate.write("forgetting a tensor"):
        last.data.copy_(kept)


if __name__ == "__main__":
    main(forgetful)
