"""Calls through one of AirSim's own Python clients, in their environment: ``bridge.py PACKAGE HOST PORT TIMEOUT_S``.

Its msgpack excludes the one that the project uses, so it is a process of its own: a line of JSON comes in for each
call, a line goes out for each answer. A struct is ``{"struct": name, "fields": {...}}`` on the way in, a map of its
fields on the way out, a picture base64 of float32. This file needs nothing of the project.
"""

import base64
import importlib
import json
import os
import sys
from typing import Any

import numpy

NAMES = {"moveByVelocityZBodyFrame": "moveByVelocityZBodyFrameAsync", "simIsPaused": "simIsPause"}
LONG_LIST = 64


def build_value(value: Any, package: Any) -> Any:
    """Return a received value, with structs as the client's objects."""
    if isinstance(value, list):
        return [build_value(item, package) for item in value]
    if not isinstance(value, dict):
        return value
    kind = getattr(package, value["struct"])
    thing = kind.__new__(kind)  # all of its fields follow
    for name, field in value["fields"].items():
        setattr(thing, name, build_value(field, package))
    return thing


def plain(value: Any) -> Any:
    """Return an answer as JSON has it."""
    if isinstance(value, (list, tuple, numpy.ndarray)):
        if len(value) > LONG_LIST and isinstance(value[0], float):
            return {"float32": base64.b64encode(numpy.asarray(value, "<f4").tobytes()).decode()}
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "__dict__"):
        return {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, bytes):
        return ""
    return value.item() if isinstance(value, numpy.generic) else value


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the clients print
    package = importlib.import_module(sys.argv[1])
    client = package.MultirotorClient(ip=sys.argv[2], port=int(sys.argv[3]), timeout_value=float(sys.argv[4]))
    moves: dict[int, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "answer" in request:  # of a move that was sent; msgpackrpc says in private whether it has come
                move = moves[request["answer"]]
                result = plain(moves.pop(request["answer"]).get()) if move._set_flag else None
            else:
                method = getattr(client, NAMES.get(request["method"], request["method"]))
                result = method(*[build_value(argument, package) for argument in request["args"]])
                if "move" in request:
                    moves = {request["move"]: result}
                    result = None
            reply = {"result": plain(result)}
        except Exception as error:  # whatever the client raises is the caller's
            reply = {"error": str(error), "kind": type(error).__name__}
        answers.write(json.dumps({**reply, "id": request["id"]}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
