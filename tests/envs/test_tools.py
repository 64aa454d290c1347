from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest

from treadle.core.actions import Action
from treadle.core.errors import ToolError
from treadle.core.messages import ToolCall
from treadle.envs.env import Env
from treadle.envs.step import Step
from treadle.envs.tools import specs_of, tool, tools_of


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Desk(Env):
    def __init__(self) -> None:
        self.log: list[str] = []
        self.both = asyncio.Event()

    @tool
    async def put(self, name: str, count: int = 1, *, size: Size = Size.SMALL, json: bool = False) -> str:
        """Put things
        on the desk.

        Args:
            name: what to put
            count: how many: at least one
        """
        self.log.append(f"put {name} {count} {size!r} {json}")
        return f"{count} {name}"

    @tool(read_only=True, idempotent=True, timeout_s=3)
    def find(self, words: list[str], where: Annotated[Literal["desk", "floor"] | None, "the place"] = None) -> Any:
        """Find things."""
        return {"words": words, "where": where}

    @tool(concurrent=True)
    async def meet(self, who: str) -> None:
        """Wait for each other."""
        self.log.append(f"in {who}")
        if len([line for line in self.log if line.startswith("in")]) == 2:
            self.both.set()
        await self.both.wait()
        self.log.append(f"out {who}")

    @tool(concurrent=True)
    async def fail(self) -> None:
        """Fail."""
        raise KeyError("bug")

    @tool
    async def refuse(self) -> None:
        """Refuse."""
        raise ToolError("not now")

    async def no_tool(self) -> None:
        raise AssertionError("must not be called")


async def act(desk: Desk, *calls: ToolCall) -> Step:
    return await desk.call_tools(Action(text="", calls=calls))


async def answer(desk: Desk, name: str, arguments: dict[str, Any] | None) -> str:
    step = await act(desk, ToolCall(name=name, arguments=arguments, raw="raw", id="7"))
    assert len(step.messages) == 1
    message = step.messages[0]
    assert (message.role, message.tool_call_id, message.name) == ("tool", "7", name)
    return message.content


def test_the_schema_comes_from_hints_and_docstring() -> None:
    put, find = specs_of(Desk)[:2]
    assert (put.name, put.description) == ("put", "Put things on the desk.")
    assert put.parameters["required"] == ["name"]
    properties = put.parameters["properties"]
    assert properties["name"] == {"type": "string", "description": "what to put"}
    assert properties["count"] == {"type": "integer", "default": 1, "description": "how many: at least one"}
    assert properties["json"] == {"type": "boolean", "default": False}
    assert put.parameters["additionalProperties"] is False
    assert find.parameters["properties"]["words"] == {"type": "array", "items": {"type": "string"}}
    assert find.parameters["properties"]["where"]["description"] == "the place"


def test_options_and_order_are_kept() -> None:
    tools = tools_of(Desk)
    assert list(tools) == ["put", "find", "meet", "fail", "refuse"]
    assert (tools["find"].options.timeout_s, tools["find"].options.read_only) == (3, True)
    assert not tools["put"].options.concurrent


def test_a_subclass_adds_changes_and_removes_tools() -> None:
    class Other(Desk):
        @tool
        async def extra(self) -> str:
            """More."""
            return "extra"

        async def refuse(self) -> None:
            """No longer a tool."""

    assert list(tools_of(Other)) == ["put", "find", "meet", "fail", "extra"]


async def test_arguments_are_converted_to_their_types() -> None:
    desk = Desk()
    assert await answer(desk, "put", {"name": "cup", "count": "3", "size": "large", "json": True}) == "3 cup"
    assert desk.log == [f"put cup 3 {Size.LARGE!r} True"]
    assert await answer(desk, "find", {"words": ["a"]}) == '{"words": ["a"], "where": null}'


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("pit", {}, "Error: unknown tool 'pit'. Did you mean 'put'? Tools: put, find, meet, fail, refuse"),
        ("no_tool", {}, "Error: unknown tool 'no_tool'. Tools: put, find, meet, fail, refuse"),
        ("put", None, "Error: put: the arguments are not a JSON object"),
        ("put", {}, "Error: put: name: is missing. Parameters: name, count, size, json"),
        (
            "put",
            {"name": "a", "number": 2},
            "Error: put: number: is not a parameter. Parameters: name, count, size, json",
        ),
        ("refuse", {}, "Error: not now"),
    ],
)
async def test_what_the_model_did_wrong_is_one_clear_line(name: str, arguments: Any, text: str) -> None:
    assert await answer(Desk(), name, arguments) == text


async def test_a_wrong_type_names_the_parameter_and_what_came() -> None:
    text = await answer(Desk(), "put", {"name": "a", "count": "many"})
    assert text.startswith("Error: put: count: Input should be a valid integer")
    assert "got 'many'" in text
    assert "\n" not in text


async def test_errors_are_marked_in_the_results() -> None:
    step = await act(Desk(), ToolCall(name="refuse", arguments={}), ToolCall(name="put", arguments={"name": "x"}))
    assert [result.error for result in step.results] == [True, False]
    assert all(result.seconds >= 0 for result in step.results)


async def test_concurrent_neighbours_run_together_and_answers_keep_the_models_order() -> None:
    desk = Desk()
    step = await act(
        desk,
        ToolCall(name="put", arguments={"name": "first"}),
        ToolCall(name="meet", arguments={"who": "a"}),
        ToolCall(name="meet", arguments={"who": "b"}),
        ToolCall(name="put", arguments={"name": "last"}),
    )
    assert [line.split()[0] for line in desk.log] == ["put", "in", "in", "out", "out", "put"]
    assert [message.content for message in step.messages] == ["1 first", "", "", "1 last"]


async def test_other_exceptions_pass_through_bare() -> None:
    with pytest.raises(KeyError):
        await act(Desk(), ToolCall(name="fail", arguments={}))
    with pytest.raises(KeyError):
        await act(Desk(), *[ToolCall(name="fail", arguments={})] * 2)


async def test_an_action_without_calls_ends_the_episode() -> None:
    assert (await Desk().call_tools(Action(text="done"))).terminated


def test_a_tool_needs_hints_and_a_positive_limit() -> None:
    with pytest.raises(ValueError, match="needs a type hint"):

        @tool
        async def untyped(self: Any, x) -> None:  # type: ignore[no-untyped-def]
            """None."""

    with pytest.raises(ValueError, match="cannot be described"):

        @tool
        async def many(self: Any, *x: int) -> None:
            """None."""

    with pytest.raises(ValueError, match="timeout_s"):
        tool(timeout_s=0)
