"""The shell taskset: counter-based, even, disjoint between its splits, short."""

import re
from collections import Counter

import pytest

import treadle.envs.shell
from treadle.envs.shell.catalog import FAMILIES
from treadle.envs.shell.env import SYSTEM_PROMPT
from treadle.envs.shell.family import LEVELS, Family, Level, noted
from treadle.envs.shell.names import HELDOUT, TRAIN, WORDS
from treadle.envs.shell.taskset import ShellTaskset, scene

SPLITS = ("train", "heldout")
ROUND = len(FAMILIES) * len(LEVELS)


def levels() -> list[tuple[str, str, Level]]:
    return [(family.name, level, family.level(level)) for family in FAMILIES for level in LEVELS]


def stems(paths: set[str]) -> set[str]:
    """Names of files and folders in paths, without endings."""
    return {part.split(".")[0] for path in paths for part in path.split("/")}


def sentence(wording: str) -> tuple[str, ...]:
    """The words of a wording: case, punctuation, articles and names of slots aside."""
    words = re.findall(r"[a-z_]+|[0-9]+", re.sub(r"\{\w+\}", " _ ", wording).lower())
    return tuple(word for word in words if word not in {"a", "an", "the", "then", "please"})


def close(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether at most one word added, dropped or changed makes one sentence the other."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    rest, others = one[same:], other[same:]
    return rest[1:] == others[1:] or rest[1:] == others or rest == others[1:]


def test_there_are_at_least_24_families_of_different_names():
    names = [family.name for family in FAMILIES]
    assert len(names) >= 24
    assert len(set(names)) == len(names)


def test_the_package_names_every_family():
    described = treadle.envs.shell.__doc__ or ""
    assert [family.name for family in FAMILIES if family.name not in described] == []


def test_one_demonstration_of_each_family_and_level_fits_the_cold_start():
    assert ROUND <= 96


@pytest.mark.parametrize("split", SPLITS)
def test_equal_seed_split_and_number_give_equal_tasks(split: str):
    one, other = ShellTaskset(7), ShellTaskset(7)
    backwards = {i: other.task(split, i) for i in reversed(range(2 * ROUND))}
    assert all(one.task(split, i) == backwards[i] for i in range(2 * ROUND))


def test_another_seed_gives_other_tasks():
    one, other = ShellTaskset(1), ShellTaskset(2)
    assert sum(one.task("train", i).prompt == other.task("train", i).prompt for i in range(ROUND)) < 5


def test_tasks_of_one_family_and_level_differ():
    taskset = ShellTaskset(0, families=["count-lines"], levels=["easy"])
    assert len({taskset.task("train", i).prompt for i in range(50)}) > 40


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("start", [0, 17, 1000])
def test_any_round_of_tasks_holds_each_family_and_level_once(split: str, start: int):
    taskset = ShellTaskset(3)
    seen = Counter((task.family, task.level) for task in (taskset.task(split, start + i) for i in range(ROUND)))
    assert seen == {(family.name, level): 1 for family in FAMILIES for level in LEVELS}


@pytest.mark.parametrize("start", [0, 11, 500])
def test_a_short_block_of_tasks_is_even_over_families_and_levels(start: int):
    taskset = ShellTaskset(4)
    tasks = [taskset.task("train", start + i) for i in range(24)]
    assert max(Counter(task.family for task in tasks).values()) <= 2
    by_level = Counter(task.level for task in tasks)
    assert max(by_level.values()) - min(by_level.values()) <= 2


def test_chosen_families_and_levels_alone_appear():
    taskset = ShellTaskset(0, families=["copy-file", "sort-lines"], levels=["easy", "hard"])
    seen = {(task.family, task.level) for task in (taskset.task("heldout", i) for i in range(8))}
    assert seen == {(f, level) for f in ("copy-file", "sort-lines") for level in ("easy", "hard")}


@pytest.mark.parametrize("wrong", [{"families": ["copy"]}, {"levels": ["simple"]}, {"levels": []}])
def test_an_unknown_family_or_level_is_refused(wrong: dict[str, list[str]]):
    with pytest.raises(ValueError, match="expected"):
        ShellTaskset(0, **wrong)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="heldout"):
        ShellTaskset(0).task("test", 0)


def test_both_splits_are_endless():
    assert [ShellTaskset(0).size(split) for split in SPLITS] == [None, None]


@pytest.mark.parametrize(("family", "name", "level"), levels())
def test_each_level_has_ten_training_wordings_and_three_held_out_ones(family: str, name: str, level: Level):
    assert len({sentence(wording) for wording in level.train}) == len(level.train) >= 10
    assert len({sentence(wording) for wording in level.heldout}) == len(level.heldout) >= 3


@pytest.mark.parametrize("kind", ["file", "folder", "word", "number"])
def test_a_note_is_told_of_in_at_least_eight_training_openings(kind: str):
    one_ask = noted(kind, FAMILIES[0].hard.build, train=["Say it."], heldout=["Tell it."])
    assert len({sentence(wording) for wording in one_ask.train}) >= 8


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_hard_level_has_many_training_wordings(family: Family):
    alone = family.name in {"which-file", "largest-file"}
    assert len(family.hard.train) >= (10 if alone else 40)


def test_the_splits_share_no_wording():
    train = {wording for _, _, level in levels() for wording in level.train}
    heldout = {wording for _, _, level in levels() for wording in level.heldout}
    assert not train & heldout


def test_the_splits_share_no_wording_under_other_slots_articles_or_punctuation():
    train = {sentence(wording) for _, _, level in levels() for wording in level.train}
    heldout = {sentence(wording) for _, _, level in levels() for wording in level.heldout}
    assert not train & heldout


@pytest.mark.parametrize(("family", "name", "level"), levels())
def test_a_held_out_wording_is_more_than_one_word_away_from_every_training_one(family: str, name: str, level: Level):
    near = [(one, other) for one in level.heldout for other in level.train if close(sentence(one), sentence(other))]
    assert near == []


def test_the_name_pools_share_no_name():
    train = {*TRAIN.files, *TRAIN.folders, *stems(set(TRAIN.notes))}
    heldout = {*HELDOUT.files, *HELDOUT.folders, *stems(set(HELDOUT.notes))}
    assert not train & heldout


def test_files_folders_and_words_of_contents_share_no_name():
    for names in (TRAIN, HELDOUT):
        everything = [*names.files, *names.folders, *stems(set(names.notes)), *WORDS]
        assert len(set(everything)) == len(everything)


def test_no_name_of_a_generated_task_appears_in_the_other_split():
    taskset = ShellTaskset(5)
    seen = {}
    for split in SPLITS:
        scenes = [scene(taskset.task(split, i)) for i in range(2 * ROUND)]
        seen[split] = stems({path for made in scenes for path in (*made.files, *made.folders)})
    assert len(seen["train"]) > 40
    assert not seen["train"] & seen["heldout"]


def test_no_word_of_contents_is_part_of_another_word_or_name():
    longer = [*WORDS, *TRAIN.files, *TRAIN.folders, *HELDOUT.files, *HELDOUT.folders]
    assert not [(word, other) for word in WORDS for other in longer if word != other and word in other]


@pytest.mark.parametrize("split", SPLITS)
def test_prompts_and_demonstrations_are_short_and_workspaces_small(split: str):
    taskset = ShellTaskset(6)
    for i in range(3 * ROUND):
        task = taskset.task(split, i)
        made = scene(task)
        assert len(task.prompt) <= 150
        assert sum(len(turn) for turn in made.turns) <= 150
        assert all(len(turn.splitlines()) == 3 for turn in made.turns[:-1])
        assert sum(len(content) for content in made.files.values()) <= 40_000
        assert "{" not in task.prompt
    assert len(SYSTEM_PROMPT) <= 160


def test_easy_and_medium_tasks_take_one_command_and_hard_ones_two():
    taskset = ShellTaskset(8)
    for i in range(ROUND):
        task = taskset.task("train", i)
        turns = taskset.demonstration(task)
        assert turns is not None
        assert len(turns) == (3 if task.level == "hard" else 2)
        assert turns[-1].startswith("The answer is ") == (task.level == "hard")


def test_the_second_command_of_a_hard_task_names_what_the_prompt_does_not():
    taskset = ShellTaskset(9, levels=["hard"])
    for i in range(2 * len(FAMILIES)):
        task = taskset.task("heldout", i)
        second = scene(task).turns[1].splitlines()[1]
        assert set(re.findall(r"[\w.]+", second)) - set(re.findall(r"[\w.]+", task.prompt)) - {"bash", "n", "head"}


def test_the_answer_of_a_hard_task_is_not_in_its_prompt():
    taskset = ShellTaskset(10, levels=["hard"])
    for i in range(3 * len(FAMILIES)):
        task = taskset.task("train", i)
        answer = scene(task).turns[-1].removeprefix("The answer is ").removesuffix(".")
        assert answer not in re.findall(r"[\w.]*\w", task.prompt)
