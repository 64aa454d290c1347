"""How many held-out tasks each evaluation of `graded_recipe` solves. One object for all copies of that file."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Book:
    """A listener that knows which evaluation is under way, and what each is to come to."""

    solved: dict = field(default_factory=dict)
    """Label of an evaluation to the tasks that it solves."""
    label: str = ""
    plays: defaultdict = field(default_factory=lambda: defaultdict(Counter))
    """Label to how often each held-out task was scored."""
    train: Counter = field(default_factory=Counter)
    """How often each training task was scored."""

    def emit(self, event):
        if event.name == "stage.started" and event.values["stage"] == "evaluation":
            self.label = event.values["label"]

    def score(self, task):
        """Held-out task i is solved where i is below the number; of the siblings of a group every second one is."""
        if task.split == "heldout":
            self.plays[self.label][task.id] += 1
            return float(int(task.id.rpartition("-")[2]) < self.solved.get(self.label, 0))
        self.train[task.id] += 1
        return float(self.train[task.id] % 2)

    def begin(self, **solved):
        """A new test: `update_2=3` says that the evaluation `update-2` solves three tasks."""
        self.solved = {label.replace("_", "-"): count for label, count in solved.items()}
        self.label = ""
        self.plays.clear()
        self.train.clear()
        return self


BOOK = Book()
