"""A pickle stream as data: what it would import and call stands in a tree, and nothing is imported or called.

Unpickling runs whatever the stream names. Here the stream is read opcode by opcode (``pickletools.genops``), a name
becomes a ``Symbol``, a call a ``Call``, and the reader of a file decides which of them it knows. Protocols 2 to 5.

Memory and time are bounded: the stream's bytes, its opcodes, the depth of the tree and the nodes that it would have if
everything that it refers to twice were written twice. So whoever walks a tree may walk it plainly. Any input gives a
tree or a ``ForeignError``.
"""

from __future__ import annotations

from pickletools import genops
from typing import Any

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.nodes import Call, Node, Persistent, SetOf, Symbol, describe_node, excess

MOST_BYTES = 256 * 2**20
MOST_OPCODES = 1_000_000
MOST_INTEGER_BITS = 1024

NEXT_STEP = "Save the policy again with the program that wrote it, or take an undamaged copy."


def read_pickle(stream: bytes, what: str, most_bytes: int = MOST_BYTES) -> Node:
    """Return the tree of one whole pickle stream; nothing of it is executed.

    Args:
        stream: from its first opcode to its STOP.
        what: the stream's name in messages, e.g. ``"vecnormalize.pkl"``.
        most_bytes: a longer stream is refused.

    Raises:
        ForeignError: it is damaged, too large, too deep, refers to itself or has opcodes of other protocols.
    """
    root, end = read_first_pickle(stream, what, most_bytes)
    if end != len(stream):
        raise ForeignError(f"{what} has bytes after its end.", NEXT_STEP)
    return root


def read_first_pickle(stream: bytes, what: str, most_bytes: int = MOST_BYTES) -> tuple[Node, int]:
    """Return the tree of the pickle at the stream's beginning, and how many bytes it has; else as
    :func:`read_pickle`."""
    if len(stream) > most_bytes:
        raise ForeignError(f"{what} must have at most {most_bytes} bytes, got {len(stream)}.", NEXT_STEP)
    if len(stream) < 3 or stream[0] != 0x80 or not 2 <= stream[1] <= 5:
        raise ForeignError(f"{what} must be a pickle stream of protocol 2 to 5.", NEXT_STEP)
    machine, end = _Machine(what), len(stream)
    try:
        for number, (opcode, argument, position) in enumerate(genops(stream)):
            if number >= MOST_OPCODES:
                raise machine.refusal(f"must have at most {MOST_OPCODES} opcodes")
            if opcode.name == "STOP":
                end = (len(stream) - 1 if position is None else position) + 1
                break
            machine.step(opcode.name, argument)
        root = machine.pop()
        if machine.stack or machine.outer:
            raise machine.refusal("ends with more than one object")
    except ForeignError:
        raise
    # genops has no error of its own: damaged arguments raise whatever int(), struct or a codec raises.
    except Exception as error:
        raise machine.refusal(f"is damaged ({type(error).__name__})") from error
    reason = excess(root)
    if reason is not None:
        raise machine.refusal(reason)
    return root, end


class _Machine:
    """The stack and the memo of a stream, and what each opcode does with them."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.stack: list[Node] = []
        self.outer: list[list[Node]] = []  # the stacks below each MARK
        self.memo: dict[int, Node] = {}

    def refusal(self, reason: str) -> ForeignError:
        return ForeignError(f"{self.what} {reason}.", NEXT_STEP)

    def pop(self) -> Node:
        if not self.stack:
            raise self.refusal("takes an object from an empty stack")
        return self.stack.pop()

    def top(self) -> Node:
        node = self.pop()
        self.stack.append(node)
        return node

    def since_mark(self) -> list[Node]:
        if not self.outer:
            raise self.refusal("closes a list that it has not opened")
        items, self.stack = self.stack, self.outer.pop()
        return items

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _VALUES:
            self.stack.append(self._value(argument))
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _GETS:
            if argument not in self.memo:
                raise self.refusal("takes an object that is not in its memo")
            self.stack.append(self.memo[argument])
        elif name in _PUTS:
            index = len(self.memo) if argument is None else argument
            if not 0 <= index <= MOST_OPCODES:
                raise self.refusal("has a memo index that is too large")
            self.memo[index] = self.top()
        elif name in _SHORT_TUPLES:
            items = [self.pop() for _ in range(_SHORT_TUPLES[name])]
            self.stack.append(tuple(reversed(items)))
        elif name in _OPCODES:
            _OPCODES[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise self.refusal(f"uses the opcode {name}, which policy files do not need")

    def _value(self, value: Any) -> Any:
        if isinstance(value, int) and value.bit_length() > MOST_INTEGER_BITS:
            raise self.refusal(f"must have integers of at most {MOST_INTEGER_BITS} bits")
        if isinstance(value, str) and not value.isascii():
            value.encode("utf-8")  # half a surrogate pair could not be written anywhere
        return value

    def mark(self, argument: Any) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def discard(self, argument: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def discard_to_mark(self, argument: Any) -> None:
        self.since_mark()

    def duplicate(self, argument: Any) -> None:
        self.stack.append(self.top())

    def long_tuple(self, argument: Any) -> None:
        items = self.since_mark()  # which changes the stack, so it goes first
        self.stack.append(tuple(items))

    def frozen_set(self, argument: Any) -> None:
        items = self.since_mark()
        self.stack.append(SetOf(items))

    def append(self, argument: Any) -> None:
        self._append([self.pop()])

    def append_all(self, argument: Any) -> None:
        self._append(self.since_mark())

    def _append(self, items: list[Node]) -> None:
        target = self.top()
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Call):
            target.appended.extend(items)
        else:
            raise self.refusal(f"appends to {describe_node(target)}")

    def add_all(self, argument: Any) -> None:
        items, target = self.since_mark(), self.top()
        if not isinstance(target, SetOf):
            raise self.refusal(f"adds elements to {describe_node(target)}")
        target.items.extend(items)

    def set_item(self, argument: Any) -> None:
        value, key = self.pop(), self.pop()
        self._set([key, value])

    def set_items(self, argument: Any) -> None:
        self._set(self.since_mark())

    def _set(self, items: list[Node]) -> None:
        target = self.top()
        if len(items) % 2:
            raise self.refusal("has a key without a value")
        pairs = list(zip(items[::2], items[1::2], strict=True))
        if isinstance(target, Call):
            target.pairs.extend(pairs)
        elif isinstance(target, dict):
            for key, value in pairs:
                # Larger whole numbers could be chosen so that every look-up meets every other key.
                if not isinstance(key, str) and not (isinstance(key, int) and abs(key) < 2**31):
                    raise self.refusal(f"must have names or integers as dictionary keys, got {describe_node(key)}")
                target[key] = value
        else:
            raise self.refusal(f"sets items of {describe_node(target)}")

    def symbol(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(Symbol(module, name))

    def symbol_from_stack(self, argument: Any) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise self.refusal("imports something whose name is not a string")
        self.stack.append(Symbol(module, name))

    def call(self, argument: Any) -> None:
        arguments, function = self.pop(), self.pop()
        self._call(function, arguments, {})

    def call_with_keywords(self, argument: Any) -> None:
        keywords, arguments, function = self.pop(), self.pop(), self.pop()
        if not isinstance(keywords, dict) or not all(isinstance(key, str) for key in keywords):
            raise self.refusal("makes an object whose keywords are not a dictionary of names")
        self._call(function, arguments, dict(keywords))

    def _call(self, function: Node, arguments: Node, keywords: dict[str, Node]) -> None:
        if not isinstance(function, Symbol | Call) or not isinstance(arguments, tuple):
            raise self.refusal(f"calls {describe_node(function)} with {describe_node(arguments)}")
        self.stack.append(Call(function, arguments, keywords))

    def build(self, argument: Any) -> None:
        state, target = self.pop(), self.top()
        if not isinstance(target, Call) or target.state is not None:
            raise self.refusal(f"gives {describe_node(target)} a state{' twice' if isinstance(target, Call) else ''}")
        target.state = state

    def persistent(self, argument: Any) -> None:
        self.stack.append(Persistent(self.pop()))


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "BINSTRING", "SHORT_BINSTRING"),
}
_EMPTY: dict[str, Any] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": SetOf}
_GETS = {"BINGET", "LONG_BINGET"}
_PUTS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OPCODES = {
    "MARK": _Machine.mark,
    "POP": _Machine.discard,
    "POP_MARK": _Machine.discard_to_mark,
    "DUP": _Machine.duplicate,
    "TUPLE": _Machine.long_tuple,
    "FROZENSET": _Machine.frozen_set,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "ADDITEMS": _Machine.add_all,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.symbol,
    "STACK_GLOBAL": _Machine.symbol_from_stack,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_keywords,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
