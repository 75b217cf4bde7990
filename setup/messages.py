"""Write the messages of every room's errors to tests/messages/ROOM.txt, where a review reads them in one place.

A line for each place that makes an error: the class (or the function that makes one), its code if it has one of its
own, the message and the next step as they stand in the source, with ``{expression}`` where a value goes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "messages"
ROOMS = ("airlearning_envs", "bench", "convert", "device", "policy", "quarl", "train")
MAKERS = {"bad_field", "failed", "no_cluster", "refusal", "_refusal", "refuse", "refused", "runtime_error", "_differs"}


def main() -> None:
    """Write a file for each room."""
    for room in ROOMS:
        path = FOLDER / f"{room}.txt"
        path.write_text(collect_messages(room))
        print(path.relative_to(ROOT))


def collect_messages(room: str) -> str:
    """Return the messages of a room, by file in the order of its lines."""
    lines = []
    for path in sorted((ROOT / room).rglob("*.py")):
        if not any(part.is_symlink() for part in (path, *path.parents)) and (found := [*_messages(path.read_text())]):
            lines += [f"{path.relative_to(ROOT).as_posix()}", *(f"    {line}" for line in found), ""]
    return "\n".join(lines)


def _messages(source: str) -> Iterator[str]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    for node in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        name = ast.unparse(node.func).rpartition(".")[2]
        texts = [text for argument in node.args if (text := _text(argument))]
        texts += [text for keyword in node.keywords if keyword.arg == "next_step" and (text := _text(keyword.value))]
        if (name.endswith("Error") or name in MAKERS) and any(" " in text for text in texts):
            codes = [_text(keyword.value) for keyword in node.keywords if keyword.arg == "code"]
            yield f"{name}{f' {codes[0]}' if codes else ''}: {'  |  '.join(texts)}".replace("\n", " ⏎ ")


def _text(node: ast.expr) -> str:
    """Return a string as it stands in the source, with its expressions in braces; '' for what is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _text(part)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.IfExp):
        return f"[{_text(node.body)} / {_text(node.orelse)}]" if _text(node.body) else ""
    return ""


if __name__ == "__main__":
    main()
