"""The branching policy that docs/branching.md shows is one that a recipe takes."""

import re
from pathlib import Path

from treadle import PipelineConfig, Recipe, World
from treadle.testing import EchoEnv, EchoTaskset

SHOWN = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "branching.md").read_text(), re.S)


def test_the_policy_of_ones_own_is_taken_as_it_is_written():
    names = {}
    exec(compile(SHOWN[-1], "branching.md", "exec"), names)
    recipe = Recipe(
        name="shown", world=World(tasks=EchoTaskset(("yes",)), env=EchoEnv), branching=names["EveryOther"](),
        pipeline=PipelineConfig(group_size=2),
    )
    assert recipe.flat()["branching"] == "every_other"
    assert recipe.branching.rollouts(2) == 8
