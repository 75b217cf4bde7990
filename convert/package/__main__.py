"""``python -m convert.package``: a policy as a folder for others: a hub's, with a model card, or LEAPP's."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quarl.policy import interruption
from quarl.policy.errors import PolicyError
from quarl.policy.hints import Parser, as_typed, refused
from quarl.policy.locate import shown, working_bundle
from quarl.policy.spec import Precision

if TYPE_CHECKING:
    from quarl.convert.package.packing import Package

HUB, LEAPP = "hub", "leapp"
DEFAULT_PRECISIONS = {HUB: "int8,fp32", LEAPP: "int8"}
EXAMPLES = """examples:
  python -m convert.package --policy I --output-path artifacts/hub/I
  python -m convert.package --policy I --output-path artifacts/hub/I-all --precision int8,fp16,fp32
  python -m convert.package --policy I --output-path artifacts/leapp/I --format leapp"""
WRITTEN = """\
{% for name, size in package.files.items() %}
{{ "%11s" | format("{:,}".format(size)) }}  {{ name }}
{% endfor %}
{% if package.made %}
Made for it: {{ made | join(", ") }}.
{% endif %}
{% if hub %}
Written: {{ folder }}, a bundle with a model card. \
Next: python -m device.deploy deploy --policy {{ typed }} --bits {{ bits }}
{% else %}
Written: {{ folder }}. Next, where leapp is installed: leapp.InferenceManager({{ yaml }})
{% endif %}"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(prog="python -m convert.package", description=__doc__, epilog=EXAMPLES)
    add = made.add_argument
    add("--policy", required=True, metavar="NAME", help="I, II, III or a bundle's folder")
    add("--output-path", required=True, type=Path, metavar="FOLDER", help="to write; it must not be there yet")
    add(
        "--precision",
        metavar="PRECISION",
        help="int8, fp16, …, or several: int8,fp32 (default: int8,fp32; leapp: int8)",
    )
    add(
        "--format",
        default=HUB,
        choices=[HUB, LEAPP],
        help="hub: the bundle with a model card (default); leapp: LEAPP's",
    )
    add("--accept", action="store_true", help="also make what acts too differently from the policy")
    add("--json", action="store_true", help="print one JSON document")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Pack; the exit code is 0, or 1 when something was refused (and then no folder was written)."""
    arguments = parser().parse_args(argv)
    from quarl.convert.package.packing import PackageFormat, pack, refuse_taken

    try:
        with interruption.interruptible():
            typed = DEFAULT_PRECISIONS[arguments.format] if arguments.precision is None else arguments.precision
            precisions = list(dict.fromkeys(Precision.parse(word.strip()) for word in typed.split(",")))
            refuse_taken(arguments.output_path)
            bundle = working_bundle(arguments.policy)
            done = pack(
                bundle, arguments.output_path, PackageFormat(arguments.format), precisions, accept=arguments.accept
            )
    except (PolicyError, OSError) as error:
        return refused("convert.package", error, arguments.output_path)
    except KeyboardInterrupt:
        print("convert.package: interrupted; no folder was written.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    print(json.dumps(as_json(done), indent=2) if arguments.json else as_typed(words_of(done)))
    return 0


def as_json(done: Package) -> dict[str, object]:
    """What was written, as JSON values."""
    return {
        "policy": done.policy,
        "format": done.format.value,
        "folder": str(done.folder),
        "precisions": [each.value for each in done.precisions],
        "files": dict(done.files),
        "made": [each.entry.file for each in done.made],
    }


def words_of(done: Package) -> str:
    """The files, and what to type next."""
    import jinja2

    folder = shown(done.folder)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(WRITTEN).render(
        package=done,
        made=[each.entry.file for each in done.made],
        hub=done.format.value == HUB,
        folder=folder,
        typed=shlex.quote(str(folder) if "/" in str(folder) else f"./{folder}"),
        bits=",".join(each.typed for each in done.precisions),
        yaml=json.dumps(str(folder / f"{done.policy}.yaml"), ensure_ascii=False),
    )


if __name__ == "__main__":
    raise SystemExit(main())
