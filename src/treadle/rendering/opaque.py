"""Whether a chat template only writes what messages say, read off its syntax tree.

Such a template may ask for roles, names and numbers of messages, and it may write a content, alone or joined with other
text. It does nothing else with one: no condition, no filter, no variable. Then two chats that differ in contents alone
are the same text with other contents in the same places, and a rendering can be kept and filled in again.

It errs on one side: whatever this does not know counts as something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jinja2 import nodes

_METHODS = frozenset(dir(dict)) | frozenset(dir(list))
"""Names under which a message, or the list of them, gives all that it holds."""
_NEIGHBOURS = frozenset({"previtem", "nextitem"})
_ASKS = frozenset({"defined", "undefined", "none", "mapping", "iterable", "sequence", "string"})
_FOREIGN = (
    nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.ContextReference, nodes.DerivedContextReference,
)
_AROUND = (nodes.Template, nodes.For, nodes.If, nodes.With, nodes.Scope)
"""Where output goes straight into the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opacity:
    """What a template's source shows."""

    opaque: bool
    """Contents are written and nothing else."""
    names: frozenset[str]
    """Every name of a field that it mentions."""


def opacity(tree: nodes.Template) -> Opacity:
    """Read a parsed template."""
    names = frozenset(name for node in tree.find_all((nodes.Getattr, nodes.Getitem)) if (name := _field(node)))
    foreign = next(tree.find_all(_FOREIGN), None) is not None or not names.isdisjoint(_NEIGHBOURS)
    return Opacity(opaque=not foreign and _Reading(tree).opaque, names=names)


class _Reading:
    """One tree, with the way up from each node."""

    def __init__(self, tree: nodes.Template) -> None:
        self._above = {id(child): parent for parent in _all(tree) for child in parent.iter_child_nodes()}
        uses = [node for node in tree.find_all(nodes.Name) if node.ctx == "load"]
        held = {"messages"}
        while True:
            found = [self._target(node) for node in uses if node.name in held]
            if None in found:
                self.opaque = False
                return
            more = {name for name in found if name} - held
            if not more:
                break
            held |= more
        self.opaque = True

    def _target(self, node: nodes.Node) -> str | None:
        """What a message, or a list of them, is called from here on; empty for no more; None for what is unknown."""
        above = self._above[id(node)]
        if isinstance(above, nodes.Assign) or (isinstance(above, nodes.For) and above.iter is node):
            return above.target.name if isinstance(above.target, nodes.Name) else None
        if isinstance(above, nodes.Getattr | nodes.Getitem) and above.node is node:
            name = _field(above)
            if name is None:
                return self._target(above)
            known = self._is_written(above) if name == "content" else name not in _METHODS
            return "" if known else None
        if isinstance(above, nodes.Filter) and above.node is node:
            return "" if above.name in ("length", "count") else None
        if isinstance(above, nodes.Test) and above.node is node:
            return "" if above.name in _ASKS else None
        return None

    def _is_written(self, node: nodes.Node) -> bool:
        """Whether a content goes into the text and nowhere else."""
        above = self._above[id(node)]
        while isinstance(above, nodes.Add | nodes.Concat):
            above = self._above[id(above)]
        if not isinstance(above, nodes.Output):
            return False
        while not isinstance(above, nodes.Template):
            above = self._above[id(above)]
            if not isinstance(above, _AROUND):
                return False
        return True


def _field(node: nodes.Node) -> str | None:
    """The name of the field that is asked for; None for a place in a list."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None


def _all(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _all(child)
