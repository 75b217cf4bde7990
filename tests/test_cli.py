"""``quarl VERB``: what loads, what is refused and how, interruptions, pipes; each verb's help fits on a screen."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from cyclopts import Parameter

from quarl import cli
from quarl.policy.errors import QuarlError
from quarl.policy.places import PROJECT_ROOT

ALL = {name: verb for verbs in cli.VERBS.values() for name, verb in verbs.items()}
QUARL = [sys.executable, "-m", "quarl.cli"]
HEAVY = {"numpy", "onnx", "onnxruntime", "tensorflow", "paramiko", "gymnasium", "rich"}


@pytest.mark.parametrize("words", [[], ["--help"], ["nonsense"], ["nonsense", "--json"], ["fleet", "nonsense"]])
def test_what_is_typed_wrong_or_asks_for_help_loads_nothing_heavy(words: Sequence[str]) -> None:
    program = f"import sys; from quarl import cli\ntry: cli.main({list(words)!r})\nexcept SystemExit: pass\n"
    done = subprocess.run([sys.executable, "-c", f"{program}print(*sys.modules)"], capture_output=True, text=True)
    assert HEAVY.isdisjoint(done.stdout.splitlines()[-1].split()), done.stderr


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_every_verb_fits_on_a_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    cli.main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: quarl {name}") and shown.count("\n") <= 70
    assert shown.partition("\n")[2].count(f"quarl {name}") >= 2, "two examples"


@pytest.mark.parametrize(
    "words", [["conver"], ["deploy", "--polici", "III"], ["status", "--targ", "local"], ["fleet", "run"]]
)
def test_wrong_usage_ends_with_2_and_says_what_to_type(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    found = capsys.readouterr()
    assert ended.value.code == 2 and not found.out and "next: " in found.err


def test_a_mistyped_option_value_and_verb_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {
        ("deploy", "--policy", "III", "--agent", "nativ"): '"native"',
        ("releases", "--polici", "III"): "--policy",
        ("bench", "table", "--own"): "--local",
        ("rolback",): "rollback",
        ("fleet", "depoy"): "fleet deploy",
    }
    for words, meant in wanted.items():
        with pytest.raises(SystemExit):
            cli.main(list(words))
        assert f"Did you mean {meant}" in capsys.readouterr().err


class GrumpyError(QuarlError):
    """An error of a verb."""

    exit_code = 2


@pytest.fixture
def grumpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS["Devices"], "grumpy", cli.Verb("tests.test_cli:refuse", "refuse"))


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Options.

    Attributes:
        json: print JSON
    """

    json: bool = False


@cli.verb()
def refuse(options: Options) -> None:
    raise GrumpyError("It is late.", "Come back tomorrow.", hour=3)


def test_an_error_has_its_own_status_and_form(grumpy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["grumpy", "--json"]) == 2
    found = capsys.readouterr()
    error = json.loads(found.out)["error"]
    assert error == {"code": "grumpy", "message": "It is late.", "next": "Come back tomorrow.", "values": {"hour": 3}}
    assert found.err == "error: It is late. Come back tomorrow.\n"


@pytest.mark.parametrize("words", [["tasks"], ["--help"], ["releases"]])
def test_a_reader_that_leaves_changes_nothing(words: list[str]) -> None:
    script = 'exec 3>&2; "$@" 2>&3 | head -0; exit ${PIPESTATUS[0]}'
    done = subprocess.run(["bash", "-c", script, "bash", *QUARL, *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "") and "Pipe" not in done.stderr


def test_ctrl_c_ends_with_130() -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "import time; from dataclasses import dataclass; from cyclopts import Parameter; from quarl import cli\n"
        "@Parameter(name='*')\n@dataclass\nclass Options:\n    'None.'\n"
        "@cli.verb(left='one of three is done.')\ndef sleep(options: Options) -> int:\n"
        "    print('begun', flush=True)\n"
        "    try: time.sleep(60)\n    except KeyboardInterrupt: raise ValueError('a library made this of it')\n"
        "cli.VERBS['Devices']['sleep'] = cli.Verb('__main__:sleep', 'sleep')\n"
        "raise SystemExit(cli.main(['sleep']))\n"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        running = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        os.kill(running.pid, number)
        _, said = running.communicate(timeout=30)
        assert (running.returncode, said) == (130, "interrupted; one of three is done.\n")


@pytest.mark.parametrize(
    ("module", "verb"),
    [
        ("train", "train"),
        ("train.evaluate", "evaluate"),
        ("convert", "convert"),
        ("convert.foreign", "import"),
        ("device.host", ""),
        ("device.deploy", ""),
        ("bench.memory", "bench memory"),
    ],
)
def test_the_former_names_are_the_verbs(module: str, verb: str) -> None:
    command = [sys.executable, "-m", module, *([] if verb else ["status"]), "--help"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: quarl {verb or 'status'}"), done.stderr


def test_the_benchmark_of_the_user_by_any_python() -> None:
    """``python bench/latency.py``, word for word, with a Python that has none of the packages."""
    command = [f"{sys.base_prefix}/bin/python3", "-I", "-S", "bench/latency.py", "--help"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("Usage: quarl bench latency"), done.stderr
    assert len((PROJECT_ROOT / "bench" / "latency.py").read_text().splitlines()) <= 20


def test_a_locale_of_ascii_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be encoded is written out; a traceback would come after the work was done."""
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, "ascii", write_through=True))
    assert cli.main([]) == 0
    print("160 µs")
    assert output.getvalue().endswith(b"160 \\xb5s\n")
