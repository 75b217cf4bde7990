"""``quarl VERB``: one command for everything; a verb's module is loaded when the verb is typed.

A verb is a function of one dataclass, whose fields are its options and whose docstring describes them. It returns its
exit status, or (data, text): the text is printed, with ``--json`` the data. Errors are :class:`QuarlError`: the message
says what was received, what is allowed and what to type next.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, get_type_hints

from quarl.policy.console import as_typed, disk_full_hint
from quarl.policy.errors import QuarlError
from quarl.policy.places import cache_folder
from quarl.train.actorq import VARIABLES

if TYPE_CHECKING:
    from cyclopts import App, Parameter

ABOUT = "Train a policy, quantize it, deploy it to a Raspberry Pi over SSH, and measure it there."

LOADING_S = 0.7
EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
Run = Callable[..., Any]

T = TypeVar("T", int, float)
RENAMED_OPTIONS = {"--own": "--local", "--looks": "--history-length"}
"""Options by their former names, which resemble others more."""


class Verb(NamedTuple):
    """A verb's function, as MODULE:NAME; what it does; and variables of its libraries, which read them as they load."""

    where: str
    about: str
    environment: Mapping[str, str] = {}


ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""With another number of threads numpy's sums end in other last bits, quantizers' scales follow them, and a walking
robot's episode is another one; small products are not faster with several."""

LIBRARIES = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""One BLAS thread (matrices are small), no banners, and the same numbers whatever the CPU offers oneDNN."""
ACTORQ = {**VARIABLES, "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""A run says in a line which process died, not in a page."""
VERBS: dict[str, dict[str, Verb]] = {
    "Policies": {
        "train": Verb("quarl.train.__main__:train", "train a policy and write its bundle", LIBRARIES),
        "tasks": Verb("quarl.train.list:run", "the paper's tasks and methods, and their state"),
        "actorq": Verb(
            "quarl.train.actorq.__main__:train",
            "train with quantized actors, on one machine or several",
            ACTORQ,
        ),
        "evaluate": Verb("quarl.train.evaluate:run", "evaluate a policy on its task", LIBRARIES),
        "import": Verb("quarl.convert.importers.__main__:run", "make a bundle of a policy of your own", LIBRARIES),
        "export-torch": Verb(
            "quarl.convert.importers.run_export_torch:run", "ONNX of a PyTorch policy, for quarl import"
        ),
        "convert": Verb("quarl.convert.__main__:convert", "a policy as TFLite, ONNX and native artifacts", LIBRARIES),
        "rewrite": Verb("quarl.convert.rewrite:run", "rewrite weights so that int8 is more exact"),
        "package": Verb("quarl.convert.package.__main__:run", "a folder for others: artifacts, model card, example"),
        "export-c": Verb("quarl.convert.export_c.__main__:run", "a policy as C sources"),
        "fly": Verb("quarl.airlearning_envs.fly:run", "fly a navigation policy, here or in AirSim"),
        "record": Verb("quarl.airlearning_envs.record:run", "film a flight"),
        "compare-flight": Verb("quarl.airlearning_envs.compare_flight:run", "compare a flight with the simulator"),
        "airsim": Verb("quarl.airlearning_envs.simulators.airsim.stand_in:serve", "serve AirSim's protocol from here"),
    },
    "Devices": {
        "deploy": Verb("quarl.device.deploy.verbs:deploy", "deploy a policy; it is checked before it serves"),
        "rollback": Verb("quarl.device.deploy.verbs:rollback", "switch back to an older release"),
        "releases": Verb("quarl.device.deploy.verbs:releases", "what is deployed"),
        "remove": Verb("quarl.device.deploy.verbs:remove", "remove releases from a device"),
        "status": Verb("quarl.device.deploy.verbs:status", "what the device is and what serves on it"),
        "reach": Verb("quarl.device.deploy.verbs:reach", "whether the device answers and accepts the login"),
        "serve": Verb("quarl.device.deploy.serving:serve", "serve a deployed policy in a robot's loop"),
        "unserve": Verb("quarl.device.deploy.serving:unserve", "stop a policy's loop"),
        "serving": Verb("quarl.device.deploy.serving:serving", "whether a loop runs, and how punctually"),
        "signers": Verb("quarl.device.deploy.signing.provisioning:signers", "who may sign a device's releases"),
        "accept-host-key": Verb("quarl.device.deploy.verbs:accept_host_key", "record a device's host key"),
        "prefetch": Verb("quarl.device.deploy.verbs:prefetch", "fetch the wheels that a device will need"),
        "static-agent": Verb(
            "quarl.convert.package.static_agent:static_agent", "policy and agent as two files, without Python"
        ),
        "fleet deploy": Verb("quarl.device.deploy.fleet.command:deploy", "deploy a policy to a group, in phases"),
        "fleet status": Verb("quarl.device.deploy.fleet.command:status", "what each device serves"),
        "fleet run": Verb("quarl.device.deploy.fleet.command:run", "measure latency, memory or success on each device"),
        "local-fleet": Verb("quarl.device.deploy.local_fleet:local_fleet", "serve an embedded fleet, to try it"),
        "pi start": Verb("quarl.device.virtual_pi.__main__:start", "start an emulated Raspberry Pi"),
        "pi stop": Verb("quarl.device.virtual_pi.__main__:stop", "shut it down; its card is kept"),
        "pi reboot": Verb("quarl.device.virtual_pi.__main__:reboot", "shut it down and start it again"),
        "pi status": Verb("quarl.device.virtual_pi.__main__:status", "which ones run"),
        "pi build": Verb("quarl.device.virtual_pi.__main__:build", "build the card's image (needs root)"),
        "pi clean": Verb("quarl.device.virtual_pi.__main__:clean", "remove images and cards"),
    },
    "Measuring": {
        "bench latency": Verb("quarl.bench.timing:latency", "how long one decision takes"),
        "bench memory": Verb("quarl.bench.memory:memory", "how much memory a policy takes"),
        "bench success": Verb("quarl.bench.success:success", "how often a policy reaches the goal"),
        "bench table": Verb("quarl.bench.table:table", "tables of stored measurements"),
        "bench loop": Verb("quarl.bench.loop:loop", "how punctual a policy is in a robot's loop"),
        "bench pressure": Verb("quarl.bench.pressure:pressure", "a policy that exceeds the memory"),
        "bench native": Verb("quarl.bench.native:native", "the native engine beside the other runtimes"),
        "bench ladder": Verb("quarl.bench.ladder:ladder", "how few bits keep each policy's return", LIBRARIES),
        "bench imports": Verb("quarl.bench.imports:imports", "public policy files: which can be imported"),
        "bench instructions": Verb("quarl.bench.instructions:instructions", "what a decision costs a Cortex-A53"),
        "recommend": Verb(
            "quarl.bench.recommend:recommend", "precision, runtime and agent for a policy and a device", LIBRARIES
        ),
        "study all": Verb("quarl.bench.study.everything:everything", "the whole quantization study, in one command"),
        "study sweep": Verb("quarl.bench.study.sweep:sweep", "how few bits does a policy take?", ONE_THREAD),
        "study qat": Verb("quarl.bench.study.learning.qat:qat", "is learning with quantizers worth it?"),
        "study weights": Verb("quarl.bench.study.weights:weights", "what do a policy's weights look like?"),
        "study width": Verb("quarl.bench.study.width:width", "do wider weights quantize worse?"),
        "study cells": Verb(
            "quarl.bench.study.cells:cells", "what do the benchmark's policies reach in each precision?", ONE_THREAD
        ),
        "study ptq": Verb(
            "quarl.bench.study.ptq_table:ptq", "what does quantizing after training cost, beside the paper's figures?"
        ),
        "study speed": Verb("quarl.bench.study.speed:speed", "how fast is training, beside Stable-Baselines3?"),
        "study mixed": Verb("quarl.bench.study.mixed:mixed", "does training in 16 bits run faster, and as well?"),
        "study actorq-breakdown": Verb(
            "quarl.bench.study.actorq.breakdown:breakdown", "where does an actor's time go?", ACTORQ
        ),
        "study actorq-trainings": Verb(
            "quarl.bench.study.actorq.trainings:trainings",
            "do quantized actors make distributed training faster?",
            ACTORQ,
        ),
        "page": Verb("quarl.bench.page:page", "what was measured, as a page"),
        "peers": Verb("quarl.bench.peers.__main__:peers", "other programs on the same policies"),
    },
}
"""By group and name; a name of two words is of a verb with verbs of its own."""
GROUPS = {
    "bench": "measure on a device, and the tables of it",
    "fleet": "deploy to many devices, see what they serve, measure on them",
    "pi": "emulated Raspberry Pis",
    "study": "one experiment on quantization, or all of them",
}


def verb(left: str = "what had been finished is kept.") -> Callable[[Run], Run]:
    """Make a verb of a function of one parameter, ``options``, a dataclass.

    Args:
        left: what an interruption leaves, for the message.
    """

    def decorate(run: Run) -> Run:
        kind = get_type_hints(run)["options"]
        # An inherited field's annotation is a string that only its own module can read.
        kind.__init__.__annotations__ = get_type_hints(kind, include_extras=True)
        # After an option no field is read by its place.
        kind.__dataclass_fields__ = dict(sorted(kind.__dataclass_fields__.items(), key=lambda each: each[1].kw_only))
        if all(field.default is not field.default_factory for field in dataclasses.fields(kind)):
            run.__defaults__ = (kind(),)  # cyclopts wants one where nothing is required
        run.left = left  # type: ignore[attr-defined]
        return run

    return decorate


def reads(read: Callable[[str], Any], metavar: str | None = None, **more: Any) -> Parameter:
    """Return a parameter of one word, which ``read`` reads; a ValueError of it says what is allowed."""
    from cyclopts import Parameter

    return Parameter(converter=lambda _, tokens: read(tokens[0].value), n_tokens=1, metavar=metavar, **more)


def number_reader(kind: Callable[[str], T], allowed: Callable[[T], bool], why: str) -> Callable[[str], T]:
    """Return a reader of numbers of a kind that are allowed; of others it says why not. Whole ones: 1,000 is a
    thousand."""

    def read(text: str) -> T:
        try:
            if allowed(value := kind(text.replace("_", "").replace(",", "") if kind is int else text)):
                return value
        except ValueError:
            pass
        raise ValueError(f"{text!r} {why}")

    return read


def set_environment(variables: Mapping[str, str]) -> None:
    """Set those that are not set yet."""
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)


def options(name: str, words: Sequence[str]) -> Any:
    """Return the options of a verb that these words stand for."""
    _, bound, _ = app(name).parse_args([*name.split(), *words], print_error=False, exit_on_error=False)
    bound.apply_defaults()
    return bound.args[0]


def app(typed: str = "") -> App:
    """Return the command line's grammar; of the verb that was typed, the help is its docstring, of others what they
    do."""
    import inspect
    from importlib import import_module, metadata

    from cyclopts import App, Group, Parameter

    app_options: dict[str, Any] = {
        "help_format": "markdown",
        "default_parameter": Parameter(negative=(), show_default=_default, allow_repeating=True),
        "help_epilogue": "",
    }
    top = App(name="quarl", help=ABOUT, version=lambda: metadata.version("quarl"), **app_options)
    inner: dict[str, App] = {}
    for title, verbs in VERBS.items():
        group = Group.create_ordered(title)
        for number, (name, entry) in enumerate(verbs.items()):
            first, _, second = name.partition(" ")
            if second and first not in inner:
                inner[first] = App(name=first, help=GROUPS[first], group=group, sort_key=number, **app_options)
                top.command(inner[first])
            place, place_in = (inner[first], "Verbs") if second else (top, group)
            shape: dict[str, Any] = {"name": second or first, "group": place_in, "sort_key": number}
            if name == typed:
                module, _, function = entry.where.partition(":")
                run = getattr(import_module(module), function)
                examples = re.compile(r"(?:^ *quarl [a-z].*\n?)+", re.MULTILINE)
                help_text = examples.sub(_block, inspect.getdoc(run) or "")
                place.command(run, help=help_text, **shape)
            else:
                place.command(entry.where, help=entry.about, **shape)
    top.register_install_completion_command(name="--install-completion", add_to_startup=False)
    return top


def _block(lines: re.Match[str]) -> str:
    """Lines that stay lines in Markdown."""
    return "```text\n" + "\n".join(line.strip() for line in lines[0].splitlines()) + "\n```\n"


def overview() -> str:
    """Return all verbs, without the library that reads options: that takes a tenth of a second to load."""
    sections: list[str] = [f"quarl VERB [OPTIONS]\n\n{ABOUT}\nquarl VERB --help shows the options of one."]
    for title, verbs in VERBS.items():
        lines = {name.split()[0]: GROUPS.get(name.split()[0], verb.about) for name, verb in verbs.items()}
        sections.append("\n".join([f"{title}:", *(f"  {name:<16} {about}" for name, about in lines.items())]))
    return "\n\n".join(sections)


def _default(value: Any) -> Any:
    """Return a default as it is typed, for the help; None: there is nothing to show."""
    values = value if isinstance(value, tuple | list) else [value]
    typed = ",".join(str(getattr(item, "value", item)) for item in values)
    return None if value is None or value is False else typed or None


def of(name: str) -> Callable[..., int]:
    """``main(argv)`` of one verb."""
    return lambda argv=None: main([*name.split(), *(sys.argv[1:] if argv is None else argv)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was typed.

    Returns:
        0 done, 1 failed, 130 interrupted; or what the verb returns. Wrong usage raises SystemExit with 2.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in a locale of ASCII, µ must not end what was done
    if not words or words in (["--help"], ["-h"]):
        print(overview())
        return EXIT_OK
    _require_known(words)
    from cyclopts import CycloptsError

    left = "nothing was begun."
    named = {name: entry for verbs in VERBS.values() for name, entry in verbs.items()}
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in named), "")
    cache = cache_folder()  # by themselves these two make a folder in HOME
    set_environment({"KERAS_HOME": str(cache / "keras"), "MPLCONFIGDIR": str(cache / "matplotlib")})
    set_environment(named[name].environment if name else {})
    with _interruptible() as pressed:
        try:
            try:
                with _loading(name):
                    run, bound, _ = app(name).parse_args(words, print_error=False, exit_on_error=False)
            except (CycloptsError, ValueError) as error:  # a ValueError of options that exclude each other
                message = _unknown_option(name, words) or str(error)
                print(f"error: {message}\n  next: {as_typed(f'quarl {name} --help')}", file=sys.stderr)
                raise SystemExit(EXIT_USAGE) from None
            left = getattr(run, "left", left)
            return _answer(run(*bound.args, **bound.kwargs), "--json" in words)
        except KeyboardInterrupt as error:
            left = str(error) or left
        except Exception as error:  # a library in whose middle Ctrl-C falls makes an error of its own of it
            if not pressed():
                return _report_error(error, "--json" in words)
    print(as_typed(f"interrupted; {left}"), file=sys.stderr)
    return EXIT_INTERRUPTED


def _unknown_option(name: str, words: Sequence[str]) -> str:
    """Return what is said of an option that there is not; the library tells of what is missing first."""
    place = app(name)
    for word in name.split():
        place = place[word]
    names = {spelling for argument in place.assemble_argument_collection() for spelling in argument.names}
    known = sorted(spelling for spelling in names if spelling.replace("--no-", "--") not in names - {spelling})
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in {*known, "--help"}:
            renamed = RENAMED_OPTIONS.get(option)
            near = [renamed] if renamed in known else difflib.get_close_matches(option, known)
            return f"There is no option {option}.{f' Did you mean {near[0]}?' if near else ''}"
    return ""


def _require_known(words: Sequence[str]) -> None:
    """Refuse an unknown verb; the library would load all verbs to name those that are near."""
    known = {name for verbs in VERBS.values() for name in verbs} | GROUPS.keys()
    first = words[0]
    if first in GROUPS and words[1:2] and not words[1].startswith("-"):
        known, first = {name for name in known if name.startswith(f"{first} ")}, " ".join(words[:2])
    if first.startswith("-") or first in known:
        return
    near = difflib.get_close_matches(first, sorted(known), cutoff=0.7)
    suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
    print(as_typed(f"error: there is no `quarl {first}`.{suggestion}\n  next: quarl --help"), file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def _answer(found: Any, as_json: bool) -> int:
    if found is None or isinstance(found, int):
        return found or EXIT_OK
    data, text = found
    values = data if isinstance(data, dict) else plain(data)
    if written := json.dumps({"ok": True, **values}, default=plain) if as_json else as_typed(text):
        print(written)
    return EXIT_OK


def _report_error(error: Exception, as_json: bool) -> int:
    """Print a known error, on standard error and with --json also on standard output; raise any other again."""
    status = EXIT_FAILED
    if isinstance(error, QuarlError):
        details, status = error.to_json(), error.exit_code
    elif isinstance(error, OSError):
        details = {
            "message": f"{error.filename or 'the system'}: {error.strerror or error}.",
            "next": disk_full_hint(error),
        }
    elif isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")):
        details = {"message": f"{error.name} is not installed.", "next": f'Type: pip install "quarl[{extra}]"'}
    else:
        raise error
    words = str(error) if isinstance(error, QuarlError) else f"{details['message']} {details['next']}".rstrip()
    print(as_typed(f"error: {words}"), file=sys.stderr)
    if as_json:
        print(json.dumps({"ok": False, "error": {"code": "system", **details}}, default=plain))
    return status


def extra_of(module: str) -> str | None:
    """Return the extra of this distribution that brings a module; None: none does."""
    from importlib import metadata

    package = module.partition(".")[0]
    packages = [package, *metadata.packages_distributions().get(package, [])]
    for line in metadata.requires("quarl") or ():
        name, _, marker = line.partition(";")
        if "extra ==" in marker and name.strip().split(">")[0].split("=")[0].split("<")[0] in packages:
            return marker.rpartition("==")[2].strip(" \"')")
    return None


def plain(value: Any) -> Any:
    """Return one layer of what :mod:`json` cannot write by itself: a dataclass, an enum or a path."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Say to a person what takes so long, where loading does."""
    timer = threading.Timer(LOADING_S, print, [f"quarl {name} is loading …"], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt once; the second time the process ends. Yields whether it was so."""
    presses: list[int] = []

    def handle_signal(number: int, _: object) -> None:
        presses.append(number)
        if len(presses) > 1:
            os._exit(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {signum: signal.getsignal(signum) for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN}
    for signum in before:
        signal.signal(signum, handle_signal)
    try:
        yield lambda: bool(presses)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class _Pipe(io.FileIO):
    """Standard output whose reader may leave (``quarl status | head -1``); the command goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def run_console() -> NoReturn:
    """Run ``quarl``."""
    if not sys.stdout.isatty():
        out = io.BufferedWriter(_Pipe(sys.stdout.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(out, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    status = main()
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    run_console()
