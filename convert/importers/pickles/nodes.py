"""What a pickle stream is read into: a tree of names, calls and plain values, and how large such a tree may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_NODES = 4_000_000
DEEPEST = 64
LONGEST_NAME = 200  # characters of a name in a message

Node = Any
"""None, bool, int, float, str, bytes, bytearray, list, tuple, dict with str or int keys, or a class of this file."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """What the stream would import; nothing is."""

    module: str
    name: str

    def __str__(self) -> str:
        return printable(f"{self.module}.{self.name}")

    def among(self, modules: tuple[str, ...], name: str) -> bool:
        """Return whether it is ``name`` of one of the modules."""
        return self.name == name and self.module in modules


@dataclass(eq=False)
class Call:
    """What the stream would call, with what it would give the result afterwards.

    Attributes:
        function: a Symbol, or a Call whose result would be called.
        state: what BUILD attaches; None without.
        pairs: what SETITEMS adds, in order.
        appended: what APPENDS adds, in order.
    """

    function: Node
    arguments: tuple[Node, ...]
    keywords: dict[str, Node] = field(default_factory=dict)
    state: Node = None
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    appended: list[Node] = field(default_factory=list)

    def calls(self, modules: tuple[str, ...], name: str) -> bool:
        """Return whether what is called is ``name`` of one of the modules."""
        return isinstance(self.function, Symbol) and self.function.among(modules, name)


@dataclass(frozen=True, eq=False)
class Persistent:
    """Something outside the stream, by the id that the stream gives it."""

    id: Node


@dataclass(eq=False)
class SetOf:
    """A set's or frozen set's elements, in the order of the stream."""

    items: list[Node] = field(default_factory=list)


def printable(text: str) -> str:
    """Return a name from a file as a message may show it: escaped, and not longer than a line or two."""
    short = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
    return short.encode("unicode_escape", "backslashreplace").decode("ascii")


def describe_node(node: Node) -> str:
    """Return what a node is, in a message: a symbol's name, ``module.name(…)`` for a call, else its type."""
    for _ in range(DEEPEST):
        if not isinstance(node, Call):
            break
        if node.calls(("cloudpickle.cloudpickle",), "_make_skeleton_class") and len(node.arguments) > 1:
            return f"{describe_node(node.arguments[1])}, a class of the file's own"
        if isinstance(node.function, Symbol):
            return f"{node.function}(…)"
        node = node.function
    if isinstance(node, Symbol):
        return str(node)
    if isinstance(node, str):
        return repr(printable(node))
    return type(node).__name__


def every_node(root: Node) -> Iterator[Node]:
    """Yield each node of a tree, once."""
    seen, stack = set[int](), [root]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(_children(node))


_TOO_DEEP = f"is nested more than {DEEPEST} deep"


def _children(node: Node) -> Iterator[Node]:
    if isinstance(node, list | tuple):
        yield from node
    elif isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, Call):
        yield node.function
        yield from node.arguments
        yield from node.keywords.values()
        yield node.state
        for pair in node.pairs:
            yield from pair
        yield from node.appended
    elif isinstance(node, Persistent):
        yield node.id
    elif isinstance(node, SetOf):
        yield from node.items


def excess(root: Node) -> str | None:
    """Why a tree may not be walked plainly (it refers to itself, is too deep, or too large written out), or None."""
    sizes: dict[int, tuple[int, int]] = {}  # of a finished node: nodes written out, depth
    unfinished: dict[int, list[int]] = {id(root): [1, 1]}
    path: list[tuple[Node, Iterator[Node]]] = [(root, _children(root))]
    while path:
        node, children = path[-1]
        size = unfinished[id(node)]
        if size[0] > MOST_NODES:
            return f"would have more than {MOST_NODES} nodes, written out"
        if size[1] > DEEPEST:
            return _TOO_DEEP
        child = next(children, path)
        if child is path:  # no child is left
            path.pop()
            sizes[id(node)] = (size[0], size[1])
            del unfinished[id(node)]
            if path:
                _add(unfinished[id(path[-1][0])], sizes[id(node)])
        elif id(child) in sizes:
            _add(size, sizes[id(child)])
        elif not isinstance(child, list | tuple | dict | Call | Persistent | SetOf):
            _add(size, (1, 1))
        elif id(child) in unfinished:
            return "has an object that refers to itself, as classes and functions inside a file do"
        else:
            if len(path) >= DEEPEST:
                return _TOO_DEEP
            unfinished[id(child)] = [1, 1]
            path.append((child, _children(child)))
    return None


def _add(size: list[int], child: tuple[int, int]) -> None:
    size[0] += child[0]
    size[1] = max(size[1], child[1] + 1)
