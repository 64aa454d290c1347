"""Programming tasks in a sandbox: the model writes Python, runs it, and is judged by tests that it never sees.

`CodeTaskset` makes tasks (endless, seeded, counter-based), `CodeEnv` plays one of them. A family is one kind of
function: sum-multiples, count-letter, nth-largest, words-backwards, run-lengths, rotate, first-repeated, above-mean.
"""

from treadle.envs.code.env import CodeEnv
from treadle.envs.code.taskset import CodeTaskset

__all__ = ["CodeEnv", "CodeTaskset"]
