"""``quarl package``: a policy as a folder for others: a hub's, with a model card, or LEAPP's."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.policy.locate import shorten_path, working_bundle
from quarl.policy.spec import Precision

if TYPE_CHECKING:
    from quarl.convert.package.packing import Package

HUB: Literal["hub"] = "hub"
DEFAULT_PRECISIONS = {HUB: "int8,fp32", "leapp": "int8"}
WRITTEN = """\
{% for name, size in package.files.items() %}
{{ "%11s" | format("{:,}".format(size)) }}  {{ name }}
{% endfor %}
{% if package.made %}
Made for it: {{ made | join(", ") }}.
{% endif %}
{% if hub %}
Written: {{ folder }}, a bundle with a model card. \
Next: quarl deploy --policy {{ typed }} --bits {{ bits }}
{% else %}
Written: {{ folder }}. Next, where leapp is installed: leapp.InferenceManager({{ yaml }})
{% endif %}"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Pack a policy.

    Attributes:
        policy: I, II, III or a bundle's folder
        output_path: to write; it must not be there yet
        precision: int8, fp16, …, or several: int8,fp32 (default: int8,fp32; leapp: int8)
        format: hub, the bundle with a model card; or leapp, LEAPP's
        accept: also write artifacts whose agreement with the policy is below the threshold
        json: print one JSON document
    """

    policy: Annotated[str, Parameter(metavar="NAME")]
    output_path: Annotated[Path, Parameter(metavar="FOLDER")]
    precision: str | None = None
    format: Literal["hub", "leapp"] = HUB
    accept: bool = False
    json: bool = False


@cli.verb(left="no folder was written.")
def run(options: Options) -> tuple[dict[str, object], str]:
    """Write a policy as a folder for others: a hub's, with a model card, or LEAPP's.

    quarl package --policy I --output-path artifacts/hub/I
    quarl package --policy I --output-path artifacts/leapp/I --format leapp
    """
    from quarl.convert.package.packing import PackageFormat, pack, refuse_taken

    typed = DEFAULT_PRECISIONS[options.format] if options.precision is None else options.precision
    precisions = list(dict.fromkeys(Precision.parse(word.strip()) for word in typed.split(",")))
    refuse_taken(options.output_path)
    bundle = working_bundle(options.policy)
    done = pack(bundle, options.output_path, PackageFormat(options.format), precisions, accept=options.accept)
    return as_json(done), words_of(done)


def as_json(done: Package) -> dict[str, object]:
    """Return what was written, as JSON values."""
    return {
        "policy": done.policy,
        "format": done.format.value,
        "folder": str(done.folder),
        "precisions": [item.value for item in done.precisions],
        "files": dict(done.files),
        "made": [item.entry.file for item in done.made],
    }


def words_of(done: Package) -> str:
    """Return the files, and what to type next."""
    import jinja2

    folder = shorten_path(done.folder)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(WRITTEN).render(
        package=done,
        made=[item.entry.file for item in done.made],
        hub=done.format.value == HUB,
        folder=folder,
        typed=shlex.quote(str(folder) if "/" in str(folder) else f"./{folder}"),
        bits=",".join(item.bits_argument for item in done.precisions),
        yaml=json.dumps(str(folder / f"{done.policy}.yaml"), ensure_ascii=False),
    )


main = cli.of("package")

if __name__ == "__main__":
    raise SystemExit(main())
