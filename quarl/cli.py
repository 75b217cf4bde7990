"""``quarl VERB``: one command for everything; a verb's module is loaded when the verb is typed.

A verb is a function of one dataclass, whose fields are its options and whose docstring describes them. It returns its
exit status, or (data, text): the text is printed, with ``--json`` the data. Errors are :class:`QuarlError`: the message
says what was received, what is allowed and what to type next.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, get_type_hints

from cyclopts import App, CycloptsError, Group, Parameter

from quarl.policy.errors import QuarlError
from quarl.policy.hints import as_typed, make_room

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
Run = Callable[[Any], Any]
_DEVICE = "quarl.device.deploy"


class Verb(NamedTuple):
    """A verb's function, as MODULE:NAME; what it does; and variables of its libraries, which read them as they load."""

    where: str
    about: str
    environment: Mapping[str, str] = {}


LIBRARIES = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""One BLAS thread (matrices are small), no banners, and the same numbers whatever the CPU offers oneDNN."""
VERBS: dict[str, dict[str, Verb]] = {
    "Policies": {
        "train": Verb("quarl.train.__main__:train", "train a policy and write its bundle", LIBRARIES),
        "tasks": Verb("quarl.train.list:run", "the paper's tasks and methods, and their state"),
        "actorq": Verb(
            "quarl.train.actorq.__main__:train",
            "train with quantized actors, on one machine or several",
            {**LIBRARIES, "RAY_DEDUP_LOGS_SKIP_REGEX": "."},  # a run says in a line which process died, not in a page
        ),
        "evaluate": Verb("quarl.train.evaluate:run", "how well a policy does on its task", LIBRARIES),
        "import": Verb("quarl.convert.importers.__main__:run", "make a bundle of a policy of your own"),
        "convert": Verb("quarl.convert.__main__:convert", "shrink a policy to TFLite, ONNX and native artifacts"),
        "rewrite": Verb("quarl.convert.rewrite:run", "the same policy with weights that int8 fits better"),
        "package": Verb("quarl.convert.package.__main__:run", "a folder to hand on: artifacts, model card, example"),
        "export-c": Verb("quarl.convert.export_c.__main__:run", "a policy as C sources"),
        "fly": Verb("quarl.airlearning_envs.fly:run", "fly a navigation policy, here or in AirSim"),
        "record": Verb("quarl.airlearning_envs.record:run", "film a flight"),
        "compare-flight": Verb("quarl.airlearning_envs.compare_flight:run", "hold a flight against the simulator"),
        "airsim": Verb("quarl.airlearning_envs.simulators.airsim.server:serve", "serve AirSim's protocol from here"),
    },
    "Devices": {},
    "Measuring": {
        "recommend": Verb("quarl.bench.recommend:main", "precision, runtime and agent for a policy and a device"),
        "study": Verb("quarl.bench.study.__main__:main", "one experiment on quantization, or all of them"),
        "page": Verb("quarl.bench.page.__main__:main", "what was measured, as a page"),
        "peers": Verb("quarl.bench.peers.__main__:main", "other programs on the same policies"),
    },
}
"""By group and name; a name of two words is of a verb with verbs of its own."""
GROUPS = {
    "bench": "measure on a device, and the tables of it",
    "fleet": "deploy to many devices, see what they serve, measure on them",
    "pi": "emulated Raspberry Pis",
}


def verb(left: str = "what had been finished is kept.") -> Callable[[Run], Run]:
    """Make a verb of a function of one parameter, ``options``, a dataclass.

    Args:
        left: what an interruption leaves, for the message.
    """

    def made(run: Run) -> Run:
        fields = dataclasses.fields(get_type_hints(run)["options"])
        if all(each.default is not each.default_factory for each in fields):
            run.__defaults__ = (get_type_hints(run)["options"](),)
        run.left = left  # type: ignore[attr-defined]
        return run

    return made


def reads(read: Callable[[str], Any], metavar: str | None = None, **more: Any) -> Parameter:
    """A parameter of one word, which ``read`` reads; a ValueError of it says what is allowed."""
    return Parameter(converter=lambda _, tokens: read(tokens[0].value), n_tokens=1, metavar=metavar, **more)


def app() -> App:
    """The command line's grammar."""
    shown = Parameter(
        negative=(),
        allow_repeating=True,  # the last one counts; of several values all do
        show_default=lambda value: None if value in (None, False, (), "") else value,
    )
    more: dict[str, Any] = {"help_format": "plaintext", "default_parameter": shown}
    top = App(
        name="quarl",
        help="Train a policy, shrink it, put it on a Raspberry Pi over SSH, and measure it there.",
        help_epilogue="quarl VERB --help shows a verb's options.",
        version=lambda: metadata.version("quarl"),
        **more,
    )
    inner = {name: App(name=name, help=about, **more) for name, about in GROUPS.items()}
    for title, verbs in VERBS.items():
        group = Group.create_ordered(title)
        for number, (name, each) in enumerate(verbs.items()):
            first, _, second = name.partition(" ")
            place, place_in = (inner[first], Group("Verbs")) if second else (top, group)
            if second and first not in top:
                top.command(inner[first], group=group, sort_key=number)
            shape: dict[str, Any] = {"name": second or first, "help": each.about, "group": place_in, "sort_key": number}
            if each.where.endswith(":main"):
                place.command(_passing(each.where), help_flags=(), **shape)
            else:
                place.command(each.where, **shape)
    top.register_install_completion_command(name="--install-completion", add_to_startup=False)
    return top


def _passing(where: str) -> Callable[..., int]:
    def run(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
        module, _, name = where.partition(":")
        status: int = getattr(import_module(module), name)(list(words))
        return status

    return run


def set_environment(variables: Mapping[str, str]) -> None:
    """Set those that are not set yet."""
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)


def options(name: str, words: Sequence[str]) -> Any:
    """The options of a verb that these words stand for."""
    _, bound, _ = app().parse_args([*name.split(), *words], print_error=False, exit_on_error=False)
    bound.apply_defaults()
    return bound.args[0]


def of(name: str) -> Callable[..., int]:
    """``main(argv)`` of one verb."""
    return lambda argv=None: main([*name.split(), *(sys.argv[1:] if argv is None else argv)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was typed.

    Returns:
        0 done, 1 failed, 130 interrupted; or what the verb returns. Wrong usage raises SystemExit with 2.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    left = "nothing was begun."
    named = {name: each for verbs in VERBS.values() for name, each in verbs.items()}
    for name in (" ".join(words[:2]), *words[:1]):
        set_environment(named[name].environment if name in named else {})
    with _interruptible() as pressed:
        try:
            run, bound, _ = app().parse_args(words, print_error=False, exit_on_error=False)
            left = getattr(run, "left", left)
            return _answer(run(*bound.args, **bound.kwargs), "--json" in words)
        except KeyboardInterrupt as error:
            left = str(error) or left
        except CycloptsError as error:
            _refuse(error)
        except Exception as error:  # a library in whose middle Ctrl-C falls makes an error of its own of it
            if not pressed():
                return _failed(error, "--json" in words)
    print(as_typed(f"interrupted; {left}"), file=sys.stderr)
    return EXIT_INTERRUPTED


def _answer(found: Any, as_json: bool) -> int:
    if found is None or isinstance(found, int):
        return found or EXIT_OK
    data, text = found
    values = data if isinstance(data, dict) else plain(data)
    if written := json.dumps({"ok": True, **values}, default=plain) if as_json else as_typed(text):
        print(written)
    return EXIT_OK


def _refuse(error: CycloptsError) -> NoReturn:
    chain = " ".join(error.command_chain or ())
    print(f"error: {error}\n  next: {as_typed(f'quarl {chain}').rstrip()} --help", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _failed(error: Exception, as_json: bool) -> int:
    """Print a known error, on standard error and with --json also on standard output; raise any other again."""
    status = EXIT_FAILED
    if isinstance(error, QuarlError):
        found, status = error.to_json(), error.exit_status
    elif isinstance(error, OSError):
        found = {"message": f"{error.filename or 'the system'}: {error.strerror or error}.", "next": make_room(error)}
    elif isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")):
        found = {"message": f"{error.name} is not installed.", "next": f'Type: pip install "quarl[{extra}]"'}
    else:
        raise error
    words = str(error) if isinstance(error, QuarlError) else f"{found['message']} {found['next']}".rstrip()
    print(as_typed(f"error: {words}"), file=sys.stderr)
    if as_json:
        print(json.dumps({"ok": False, "error": {"code": "system", **found}}, default=plain))
    return status


def extra_of(module: str) -> str | None:
    """The extra of this distribution that brings a module; None: none does."""
    package = module.partition(".")[0]
    found = [package, *metadata.packages_distributions().get(package, [])]
    for line in metadata.requires("quarl") or ():
        name, _, marker = line.partition(";")
        if "extra ==" in marker and name.strip().split(">")[0].split("=")[0].split("<")[0] in found:
            return marker.rpartition("==")[2].strip(" \"')")
    return None


def plain(value: Any) -> Any:
    """One layer of what :mod:`json` cannot write by itself: a dataclass, an enum or a path."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt once; the second time the process ends. Yields whether it was so."""
    presses: list[int] = []

    def pressed(number: int, _: object) -> None:
        presses.append(number)
        if len(presses) > 1:
            os._exit(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    ours = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.getsignal(each) for each in ours if signal.getsignal(each) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, pressed)
    try:
        yield lambda: bool(presses)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Pipe(io.FileIO):
    """Standard output whose reader may leave (``quarl status | head -1``); the command goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def typed() -> NoReturn:
    """Run ``quarl``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "quarl")
    os.environ.setdefault("KERAS_HOME", str(cache / "keras"))  # by themselves these two make a folder in HOME
    os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
    if not sys.stdout.isatty():
        out = io.BufferedWriter(_Pipe(sys.stdout.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(out, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    status = main()
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    typed()
