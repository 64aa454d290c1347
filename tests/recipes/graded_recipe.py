"""A recipe of a test: what an evaluation comes to is said in `grades.BOOK`, and every batch has something to learn."""

from dataclasses import replace

from grades import BOOK
from words_recipe import WordEnv, Words, words

from treadle import PlainParser, Recipe, World


class Graded(WordEnv):
    """Pays what the book says, whatever it hears."""

    async def reset(self, task, ctx):
        self.task = task
        return await super().reset(task, ctx)

    async def score(self):
        return {"length": BOOK.score(self.task)}


def recipe() -> Recipe:
    """Four updates, an evaluation of four tasks after each; no cold start, so update k makes version k."""
    made = words(epochs=0, updates=4)
    return replace(
        made, name="graded", world=World(tasks=Words(), env=Graded, reads=PlainParser()),
        pipeline=replace(made.pipeline, evaluate_every=1),
    )
