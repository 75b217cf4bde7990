"""One page of what was measured: how fast, how much memory, how often it succeeds, for whom; and the paper's claims.

What stands on it is collected by :mod:`bench.page_content`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat
from quarl.policy.places import RESULTS

OUTPUT = RESULTS / "report.html"
TEMPLATE, STYLE = (Path(__file__).with_name(name) for name in ("page.html.j2", "page.css"))


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Printing):
    """Where the page goes.

    Attributes:
        output: the file
        open: open it in the browser
        preset: of the arena
    """

    output: Path = OUTPUT
    open: bool = False
    preset: Literal["easy", "medium", "shipped", "hard"] = "hard"


@heartbeat()
@cli.verb()
def page(options: Options) -> int:
    """Write one page of results: latency, memory and success on each device, and the paper's claims.

        quarl page                            results/report.html
        quarl page --open                     and open it in the browser
        quarl page --output /tmp/report.html

    The page is one file without scripts or network access. Nothing is measured: missing results are listed with the
    command that measures them.
    """
    from quarl.bench.page_content import collect
    from quarl.policy.files import write_atomically

    began = time.monotonic()
    document = collect(options.preset)
    missing, text = document["missing"], render(document).encode()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output, text)
    seconds = round(time.monotonic() - began, 1)
    if options.json:
        values = {"file": str(options.output), "bytes": len(text), "seconds": seconds, "missing": missing}
        print(json.dumps({"ok": True, **values}, ensure_ascii=False))
    else:
        for title, command in missing.items():
            command_line.say(f"not measured: {title} (type: {command})")
        command_line.say(f"{len(text) / 1e3:,.0f} KB in {seconds:.0f} s")
        print(options.output)
    if options.open:
        import webbrowser

        webbrowser.open(options.output.resolve().as_uri())
    return cli.EXIT_OK


def render(document: Mapping[str, Any]) -> str:
    """Return the HTML of what ``collect`` returns; everything that is not the template's own is escaped."""
    import jinja2
    from markupsafe import Markup

    from quarl.bench.report.text import environment
    from quarl.policy.locate import code_version

    style = STYLE.read_text(encoding="utf-8")
    templates = environment().overlay(loader=jinja2.FileSystemLoader(TEMPLATE.parent), autoescape=True)
    return templates.get_template(TEMPLATE.name).render(
        **document,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        code=code_version(),
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


main = cli.of("page")

if __name__ == "__main__":
    raise SystemExit(main())
