"""Distribution of a policy's weights and biases with the n-bit levels drawn, as QuaRL's visualisations show it.

    python -m bench.study weights -f cartpole-dqn -b 4
    python -m bench.study weights -f zoo/II -b 8 --scheme symmetric --output-path /tmp/view
    python -m bench.study weights --beside zoo/benchmark/cartpole-{dqn,ppo,a2c}
    python -m bench.study weights -f zoo/II --activations

Writes a PNG, an SVG and output.txt (minimum, maximum, range and step of each parameter). --beside draws several bundles
in one picture, a column each; --activations prints each layer's range on the bundle's calibration observations instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from policy.bundle import Bundle

RESULTS = PROJECT_ROOT / "results" / "weights"
TEXT = "output.txt"
SCHEMES = ("quarl", "symmetric")  # those of bench.study.weights.view, by value: --help loads no numpy


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, write, say where."""
    parser = command_line.parser(__doc__, "-m bench.study weights")
    parser.add_argument("-f", "--folder", metavar="BUNDLE", help="bundle: a folder, or a name such as II, cartpole-dqn")
    parser.add_argument("-b", "--num-bits", "--num_bits", type=int, default=8, help="2 … 32 (default: %(default)s)")
    parser.add_argument("--scheme", choices=SCHEMES, default="quarl", help="whose levels (default: %(default)s)")
    parser.add_argument("--beside", nargs="+", metavar="BUNDLE", default=[], help="bundles to draw beside each other")
    parser.add_argument("--activations", action="store_true", help="print each layer's activation range instead")
    parser.add_argument(
        "--output-path", type=Path, metavar="FOLDER", help="where files go (default: results/weights/NAME)"
    )
    parser.add_argument("--markdown", action="store_true", help="with --activations: print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from policy.locate import working_bundle

    named = [*([arguments.folder] if arguments.folder else []), *arguments.beside]
    if not named:
        raise command_line.BenchError("no bundle was named.", "python -m bench.study weights -f cartpole-dqn -b 4")
    bundles = [working_bundle(name) for name in named]
    if arguments.activations:
        return _show_activations(bundles, arguments)
    files = draw(bundles, arguments.num_bits, arguments.scheme, arguments.output_path, beside=bool(arguments.beside))
    if arguments.json:
        print(json.dumps({"ok": True, "files": [str(file) for file in files]}))
    else:
        print("\n".join(str(file) for file in files))
    return command_line.EXIT_OK


def draw(bundles: Sequence[Bundle], bits: int, scheme: str, folder: Path | None, beside: bool) -> list[Path]:
    """Draw one bundle, or several beside each other, and write output.txt; returns the files.

    Raises:
        QuantizationError: the scheme has no such bit width.
    """
    from bench.report import figures as drawing
    from bench.study.weights import figure as weights_figure
    from bench.study.weights import view as weight_view
    from policy.quantization import Scheme

    views = [weights_figure.View.of(bundle, bits, Scheme(scheme)) for bundle in bundles]
    folder = folder or RESULTS / ("-".join(bundle.spec.name for bundle in bundles))
    stem = folder / f"{'beside' if beside else 'weights'}-{bits}bit-{scheme}"
    subtitle = f"{scheme_words(bits, scheme)}; {weights_figure.BINS} bins, logarithmic counts"
    if beside:
        figure = weights_figure.beside_figure(tasks_words(bundles), views, subtitle)
    else:
        figure = weights_figure.parameters_figure(views[0].title, views[0].parameters, subtitle)
    files = drawing.save(figure, stem)
    text = weight_view.as_text((f"{view.title}: {bits} bits, {scheme}", list(view.parameters)) for view in views)
    files.append(folder / TEXT)
    files[-1].write_text(text, encoding="utf-8")
    return files


def scheme_words(bits: int, scheme: str) -> str:
    """What the lines are."""
    if bits == 32:
        return "32 bits: no levels"
    if scheme == "quarl":
        return f"lines: levels at {bits} bits, QuaRL's affine quantizer, one range a tensor"
    return f"lines: levels at {bits} bits, symmetric per output channel, of the widest channel"


def tasks_words(bundles: Sequence[Bundle]) -> str:
    """Title of several bundles: their task, or that they have several."""
    tasks = list(dict.fromkeys(str(bundle.spec.provenance.get("task", "unknown task")) for bundle in bundles))
    return f"Weights on {tasks[0]}" if len(tasks) == 1 else f"Weights on several tasks: {', '.join(tasks)}"


def _show_activations(bundles: Sequence[Bundle], arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.study.weights import activations as activation_ranges

    found = {bundle.spec.name: activation_ranges.activation_ranges(bundle) for bundle in bundles}
    tables = [activation_ranges.table(bundle, found[bundle.spec.name]) for bundle in bundles]
    if arguments.json:
        values = {name: [asdict(each) for each in ranges] for name, ranges in found.items()}
        print(json.dumps({"ok": True, "activations": values}))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table in tables))
    else:
        for table in tables:
            rendering.print_table(table, command_line.console())
    return command_line.EXIT_OK


if __name__ == "__main__":
    raise SystemExit(main())
