"""How few bits keep the return of each policy that comes with the repository: the ladders of ``--bits auto``, kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat
from quarl.policy.spec import ArtifactFormat, Precision

if TYPE_CHECKING:
    from quarl.bench.tables import Table
    from quarl.policy.ladder import Rung

LADDER = "ladder"
WORDS = """\
The fewest bits that keep the return
At most {{ max_loss }} % of the policy's return may be lost, by the 95 % interval; the smallest artifact of any \
format. Return lost: of what is taken, on other episodes than those it was chosen by; of int8, on those. *: not \
decided by these episodes. sb3-…: official agents of Stable-Baselines3 (DLR-RM/rl-trained-agents, commit cd35bde6), \
imported with quarl import --task.
Played on {{ results.machine }}; code {{ codes }}.
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Answering):
    """Which policies.

    Attributes:
        policy: names or folders (default: I, II, III and the benchmark's policies)
    """

    policy: command_line.Policies = ()


@heartbeat()
@cli.verb()
def ladder(options: Options) -> int:
    """Compare each policy's precisions with the policy, and print the fewest bits that keep its return.

        quarl bench ladder --policy I,cartpole-dqn
        quarl bench ladder --keep

        quarl bench ladder --keep --policy path/to/bundle

    A policy whose bundle has a ladder (quarl convert --bits auto) is not played again. --keep stores the answer in
    results/ladder.json; with --policy it is added to what is there.
    """
    from quarl.bench.report import store
    from quarl.bench.study.bundles import BENCHMARK
    from quarl.convert.ladder import Question, climb, find_ladder
    from quarl.policy import json_values
    from quarl.policy.locate import working_bundle

    kept = store.answer_file(LADDER)
    rows: dict[str, Any] = {}
    if options.keep and options.policy and kept.exists():
        rows = {row["policy"]: row for row in store.read_answer(kept, "")["policies"]}
    for name in options.policy or ("I", "II", "III", *BENCHMARK):
        bundle = working_bundle(name, quiet=True)
        command_line.say(f"{name} …")
        found = find_ladder(bundle, Question()) or climb(bundle, Question(), report=command_line.say)
        name = bundle.spec.name
        rows[name] = {"policy": name, "ladder": json_values.write(found)}
    return options.publish(
        LADDER,
        {"policies": list(rows.values())},
        lambda document: [ladder_table(document)],
        amounts=lambda document: {(row["policy"],): 1 for row in document["policies"]},
        unit="policies",
    )


def ladder_table(document: Mapping[str, Any]) -> Table:
    """Return a line for each policy: the smallest precision that keeps its return, and int8 beside it."""
    from quarl.bench.report.text import kilobytes
    from quarl.bench.tables import tabulate
    from quarl.policy import json_values
    from quarl.policy.ladder import Ladder

    lines, bounds, codes = [], set(), set()
    for row in document["policies"]:
        found: Ladder = json_values.read(Ladder, row["ladder"])
        bounds.add(f"{found.max_loss:g}")
        codes.add(found.code)
        taken, int8 = found.rung(found.choose(tuple(ArtifactFormat))), found.rung(Precision.INT8)
        assert taken is not None
        undecided = int8 is not None and found.keeps(int8) is None
        lines.append(
            {
                "policy": row["policy"],
                "task": found.task or "not known",
                "taken": taken.precision.value,
                "KB": kilobytes(min(taken.bytes.values())),
                "KB fp32": kilobytes(min(found.rungs[-1].bytes.values())),
                "% agreement": f"{100 * taken.agreement:.1f}",
                "return lost, %": _lost(taken),
                "int8: % agreement": "–" if int8 is None else f"{100 * int8.agreement:.1f}",
                "int8: return lost, %": "–" if int8 is None else f"{_lost(int8, is_fresh=False)}{'*' * undecided}",
            }
        )
    return tabulate(
        LADDER,
        WORDS,
        lines,
        left=3,
        results=document,
        max_loss=", ".join(sorted(bounds)),
        codes=", ".join(sorted(codes)),
    )


def _lost(rung: Rung, *, is_fresh: bool = True) -> str:
    loss = (rung.fresh if is_fresh else None) or rung.loss
    return "–" if loss is None else f"{loss.percent:.2f} [{loss.low:.2f}, {loss.high:.2f}]"


main = cli.of("bench ladder")

if __name__ == "__main__":
    raise SystemExit(main())
