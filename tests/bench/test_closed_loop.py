"""The benchmark against TRL: what is compared, and what is said when it cannot be."""

import json

import pytest
from bench.closed_loop import alternated, best, chosen, compared, fastest, sizes, told_of_calls
from bench.closed_world import ANSWER, SCENARIOS, Scenario, Work, answered, digests, worth

THREE = Scenario(name="three_turn", turns=3)
WORK = Work(folder="model", prompts=["a", "b"], groups=2, size=4, tokens=10, lr=1e-6)


def update(seconds, *, trained=240, prompts=(1, 2), generate_s=None):
    generated = seconds / 2 if generate_s is None else generate_s
    return {
        "seconds": seconds, "generate_s": generated, "update_s": seconds - generated, "trained_tokens": trained,
        "prompts": list(prompts), "observed_tokens": 7, "peak_rss_gb": 2.0,
    }


def pair(us, them, **changes):
    return {"treadle": update(us), "trl": update(them, **changes)}


class FakeSide:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def ask(self, do, **facts):
        self.log.append((self.name, do))
        return update(1.0)


def test_the_ratio_is_that_of_the_medians() -> None:
    found = compared(WORK, THREE, [pair(10, 30), pair(20, 50), pair(90, 60)], missing="")
    assert found["ratio_trl"] == pytest.approx(50 / 20)
    assert found["treadle"]["runs_s"] == [10, 20, 90]
    assert found["trained_tokens"] == 2 * 4 * 3 * 10


def test_phases_have_ratios_of_their_own() -> None:
    found = compared(WORK, THREE, [pair(10, 30, generate_s=25)], missing="")
    assert (found["ratio_generate"], found["ratio_update"]) == (5, 1)


@pytest.mark.parametrize("changes", [{"trained": 239}, {"prompts": (1, 3)}])
def test_unequal_work_gives_no_ratio(changes) -> None:
    with pytest.raises(SystemExit, match=r"three_turn.* of trl: got"):
        compared(WORK, THREE, [pair(10, 30), pair(10, 30, **changes)], missing="")


def test_tokens_that_both_left_out_are_noticed() -> None:
    both = {name: update(1, trained=200) for name in ("treadle", "trl")}
    with pytest.raises(SystemExit, match="of treadle: got 200, expected 240"):
        compared(WORK, THREE, [both], missing="")


def test_a_missing_peer_is_said_and_the_own_side_is_measured() -> None:
    found = compared(WORK, THREE, [{"treadle": update(10)}], missing="trl is not installed")
    assert found["ratio_trl"] == found["trl"] == "missing: trl is not installed"
    assert found["treadle"]["seconds"] == 10


def test_who_begins_a_pair_alternates_and_the_warm_up_counts_nowhere() -> None:
    log = []
    pairs = alternated(FakeSide("treadle", log), FakeSide("trl", log), THREE, batch=8, repeats=2)
    assert [set(one) for one in pairs] == [{"treadle", "trl"}] * 2
    updates = [name for name, do in log if do == "update"]
    assert updates == ["treadle", "trl", "trl", "treadle"]
    assert [do for _, do in log if do != "update"] == ["begin", "begin", "end", "end"]


def test_the_fastest_batch_size_is_taken_for_each_length() -> None:
    swept = {1: {"4": 20.0, "8": 19.0}, 3: {"4": 40.0, "8": 41.0}}
    assert fastest(swept[1]) == 8
    assert [best(swept, scenario) for scenario in SCENARIOS] == [8, 4, 4]
    assert best({}, THREE) == 0


def test_batch_sizes_divide_the_rollouts() -> None:
    assert sizes("4,8,16", rows=32) == [4, 8, 16]
    with pytest.raises(SystemExit, match="divisors of the 32"):
        sizes("4,5", rows=32)


def test_scenarios_go_by_name() -> None:
    assert [s.turns for s in chosen("three_turn,single_turn")] == [3, 1]
    with pytest.raises(SystemExit, match="expected some of single_turn"):
        chosen("two_turn")


def test_work_survives_the_wire() -> None:
    sent = {"do": "work", **json.loads(json.dumps(WORK.facts()))}
    assert Work.of(sent) == WORK
    assert (WORK.rows, WORK.trained(THREE)) == (8, 240)


def test_prompts_are_compared_whatever_their_order() -> None:
    assert digests([[1, 2], [3]]) == digests([[3], [1, 2]])
    assert digests([[1, 2]]) != digests([[1, 3]])


def test_the_world_answers_alike_and_pays_for_the_last_turn() -> None:
    assert answered(0.0) == ANSWER
    assert 0 <= worth("a") < 1
    assert worth("a") != worth("b")


def test_the_peers_template_also_writes_calls(tmp_path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    template = (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    copy = told_of_calls(folder, tmp_path / "copy")
    import jinja2

    made = jinja2.Environment().from_string((copy / "chat_template.jinja").read_text())
    before = jinja2.Environment().from_string(template)
    plain = [{"role": "user", "content": "hello"}]
    assert made.render(messages=plain) == before.render(messages=plain)
    call = [{"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {"said": "x"}}]}]
    assert "look" in made.render(messages=call)
    assert (copy / "config.json").read_text() == "{}"


def test_an_unknown_template_is_refused(tmp_path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(SystemExit, match="does not know it"):
        told_of_calls(folder, tmp_path / "copy")
