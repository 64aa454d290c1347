"""Edits of a tree that tell the same story in other rows: credit must not notice them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from treadle.testing.forests import Node
from treadle.trajectory.segment import Author, Why


def cut_actions(root: Node) -> Node:
    """Every policy segment of two or more tokens in two; rewards and children stay with the second part."""

    def cut(node: Node) -> Node:
        if node.author is not Author.POLICY or len(node.ids) < 2:
            return node
        at = len(node.ids) // 2
        versions = _spread(node)
        rest = replace(
            node, ids=node.ids[at:], logprobs=node.logprobs[at:], versions=tuple((v, 1) for v in versions[at:]),
            why=Why.TURN, context=None,
        )
        return replace(
            node, name=f"{node.name}/head", ids=node.ids[:at], logprobs=node.logprobs[:at],
            versions=tuple((v, 1) for v in versions[:at]), reward=0.0, children=(rest,),
        )

    return _edit(root, cut)


def split_observations(root: Node) -> Node:
    """Every observation of two or more tokens in two."""

    def split(node: Node) -> Node:
        if node.author is not Author.ENV or len(node.ids) < 2 or node.name == root.name:
            return node
        at = len(node.ids) // 2
        rest = replace(node, ids=node.ids[at:], why=Why.TURN, context=None)
        return replace(node, name=f"{node.name}/head", ids=node.ids[:at], reward=0.0, children=(rest,))

    return _edit(root, split)


def junk_observations(root: Node, junk: tuple[int, ...] = (7, 7, 7)) -> Node:
    """Every observation followed by one more observation segment of junk."""

    def pad(node: Node) -> Node:
        if node.author is not Author.ENV or not node.children or node.name == root.name:
            return node
        more = Node(name=f"{node.name}/junk", author=Author.ENV, ids=junk, children=node.children)
        return replace(node, children=(more,))

    return _edit(root, pad)


def shuffle_siblings(root: Node, rng: np.random.Generator) -> Node:
    """The children of every node in another order."""
    return _edit(root, lambda node: replace(node, children=tuple(node.children[i] for i in _order(rng, node))))


def break_context(root: Node) -> Node:
    """Every observation starts a new context right after the prompt, as a harness that compacts history would."""

    def compact(node: Node) -> Node:
        if node.author is not Author.ENV or node.name == root.name:
            return node
        return replace(node, why=Why.COMPACT, context=root.name)

    return _edit(root, compact)


def _edit(node: Node, change: Callable[[Node], Node]) -> Node:
    """The tree with `change` applied to every node, children first."""
    return change(replace(node, children=tuple(_edit(child, change) for child in node.children)))


def _spread(node: Node) -> list[int]:
    """Version of each token."""
    return [v for v, count in node.versions or ((0, len(node.ids)),) for _ in range(count)]


def _order(rng: np.random.Generator, node: Node) -> list[int]:
    return [int(i) for i in rng.permutation(len(node.children))]
