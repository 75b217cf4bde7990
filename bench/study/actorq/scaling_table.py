"""The tables of docs/actorq-scaling.md from stored documents: services, real runs, limits, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined, kilobytes, nanoseconds, three_digits, times
from bench.study.actorq.layout import RESOURCES, Rates, Services

SATURATED = 0.95
"""Share of the time at work from which on a server counts as saturated: 1 is reached only with a queue that never
empties."""
NAMES = {"learner": "learner", "replay": "replay", "parameters": "parameter process", "link": "broadcast"}
PRECISIONS = {"32": "fp32", "16": "fp16", "8": "int8", 32: "fp32", 16: "fp16", 8: "int8"}
SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PARTS = (
    ("environment step", "step_s"),
    ("inference", "inference_s"),
    ("rest of an actor's step", "python_s"),
    ("insertion, actor's part", "insert_client_s"),
    ("insertion, replay's part", "insert_server_s"),
    ("round of minibatches, learner's part", "sample_client_s"),
    ("round of minibatches, replay's part", "sample_server_s"),
    ("round of updates", "learn_s"),
    ("handing over a version", "push_s"),
    ("building it", "build_s"),
    ("receiving and storing it", "version_server_s"),
    ("looking for a newer one, actor's part", "look_client_s"),
    ("looking, parameter process's part", "look_server_s"),
    ("fetching and opening it", "renew_s"),
    ("waiting for an answer, beyond what is computed", "latency_s"),
)

Document = Mapping[str, Any]


def tables(documents: Sequence[Document]) -> list[Table]:
    """All of the page's."""
    return [service_table(documents), points_table(documents), limits_table(documents), curves_table(documents)]


def service_table(documents: Sequence[Document]) -> Table:
    """Service times: a column for each model and precision."""
    found = [
        (each["setup"]["model"], PRECISIONS[bits], Services(**values))
        for each in documents
        for bits, values in each["services"].items()
    ]
    rows = [(words, *(nanoseconds(1e9 * getattr(services, name)) for _, _, services in found)) for words, name in PARTS]
    rows.insert(8, ("… cores that it keeps busy", *(three_digits(services.learn_width) for *_, services in found)))
    rows.append(("bytes of a version, KB", *(kilobytes(services.version_bytes) for *_, services in found)))
    rounds = joined(f"{each['setup']['model']}: {each['setup']['updates']}" for each in documents)
    free = "; ".join(
        f"{each['setup']['model']} {nanoseconds(1e9 * each['engine_free']['insert_s'])} and "
        f"{nanoseconds(1e9 * each['engine_free']['sample_s'])}"
        for each in documents
    )
    return Table(
        "actorq-scaling-services",
        "Service times, in seconds of one processor",
        ("", *(f"{model} {precision}" for model, precision, _ in found)),
        tuple(rows),
        (
            f"An insertion has {joined(str(each['setup']['insert_every']) for each in documents)} transitions; a round "
            f"so many updates ({rounds}) of {joined(str(each['setup']['batch_size']) for each in documents)} "
            "transitions. Handing over, building, fetching and opening are of one version, the rest of one call.",
            "What does not depend on the precision was measured with both and averaged. Replay and parameter process "
            f"through Ray; without Ray an insertion and a round's minibatches take {free}.",
            *machines(documents),
        ),
    )


def points_table(documents: Sequence[Document]) -> Table:
    """Real runs beside what is simulated for the same cores."""
    rows = []
    for each in documents:
        for point in each["points"]:
            simulated = Rates(**point["simulated"])
            rows.append((
                each["setup"]["model"], PRECISIONS[point["bits"]], f"{point['samples_per_insert']:g}",
                str(point["n_actors"]), three_digits(point["steps_per_s"]), three_digits(simulated.steps_per_s),
                times(quotient(simulated.steps_per_s, point["steps_per_s"])), three_digits(point["updates_per_s"]),
                three_digits(simulated.updates_per_s), times(quotient(simulated.updates_per_s, point["updates_per_s"])),
            ))  # fmt: skip
    cores = joined(str(each["cores"]) for each in documents if each["points"])
    seconds = [point["seconds"] for each in documents for point in each["points"]]
    span = f"{min(seconds):.0f} … {max(seconds):.0f} s" if seconds else NOT_KNOWN
    return Table(
        "actorq-scaling-points",
        f"Simulated against real runs, all processes on {cores} cores",
        (
            "model", "precision", "samples per insertion", "actors", "steps/s, real", "simulated", "ratio",
            "updates/s, real", "simulated", "ratio",
        ),
        tuple(rows),
        (
            f"One run of python -m train.actorq each, seed 0, counted over {span} after the rounds that compile. "
            "Ratio: simulated through real; no time was fitted to these runs.",
        ),
        left=2,
    )  # fmt: skip


def limits_table(documents: Sequence[Document]) -> Table:
    """Which server is saturated first, and from how many actors on."""
    rows = []
    for each, curve in walked(documents):
        rates = [Rates(**values) for values in curve["rates"]]
        name, count = first_saturated(rates, leave_out=free_learner(curve))
        at_end = rates[-1]
        rows.append((
            each["setup"]["model"], coupling(curve), PRECISIONS[curve["bits"]], name, count,
            f"{at_end.steps_per_s:,.0f}", three_digits(at_end.updates_per_s),
            *(f"{100 * getattr(at_end, resource):.0f}" for resource in RESOURCES),
        ))  # fmt: skip
    last = joined(f"{curve['rates'][-1]['n_actors']:,}" for _, curve in walked(documents))
    return Table(
        "actorq-scaling-limits",
        "What saturates first, a machine for each process",
        (
            "model", "coupling", "broadcast in", "saturates first", "from actors", f"steps/s at {last}", "updates/s",
            *(f"{NAMES[resource]}, %" for resource in RESOURCES),
        ),
        tuple(rows),
        (
            f"Saturated: at work more than {100 * SATURATED:.0f} % of the time. Simulated at 1, 2, 3, 4, 6, 8, 12 … "
            "actors: the number is the first of these. The last four columns: share of the time at work at the most "
            "actors.",
            "16 samples per insertion: whoever is ahead waits, the command's default. Learner 100×: as if its updates "
            "took a hundredth. No coupling: the learner learns as fast as it can whatever the actors do, and is no "
            "limit to them.",
            *assumptions(documents),
        ),
        left=4,
    )  # fmt: skip


def curves_table(documents: Sequence[Document]) -> Table:
    """Steps per second by the number of actors."""
    rows = []
    for each, curve in walked(documents):
        found = {values["n_actors"]: values["steps_per_s"] for values in curve["rates"]}
        cells = (f"{found[count]:,.0f}" if count in found else NOT_KNOWN for count in SHOWN)
        rows.append((each["setup"]["model"], coupling(curve), PRECISIONS[curve["bits"]], *cells))
    return Table(
        "actorq-scaling-curves",
        "Steps per second by the number of actors, a machine for each process",
        ("model", "coupling", "broadcast in", *(f"{count:,}" for count in SHOWN)),
        tuple(rows),
        ("Of all actors together.",),
        left=3,
    )


def walked(documents: Sequence[Document]) -> list[tuple[Document, Mapping[str, Any]]]:
    """Every curve with its document."""
    return [(each, curve) for each in documents for curve in each["curves"]]


def free_learner(curve: Mapping[str, Any]) -> tuple[str, ...]:
    """Without coupling the learner is always busy, which limits nobody."""
    return () if curve["samples_per_insert"] else ("learner",)


def first_saturated(rates: Sequence[Rates], leave_out: Sequence[str] = ()) -> tuple[str, str]:
    """Name of the server that is saturated at the fewest actors, the busiest there; and that number."""
    for rate in rates:
        busy = {name: share for name, share in rate.utilisation().items() if name not in leave_out}
        name = max(busy, key=lambda each: busy[each])
        if busy[name] >= SATURATED:
            return NAMES[name], f"{rate.n_actors:,}"
    return "none", NOT_KNOWN


def coupling(curve: Mapping[str, Any]) -> str:
    """``16 samples per insertion, learner 100×``."""
    if not curve["samples_per_insert"]:
        return "no coupling"
    faster = f", learner {curve['learner_speed']:g}×" if curve["learner_speed"] != 1 else ""
    return f"{curve['samples_per_insert']:g} samples per insertion{faster}"


def quotient(simulated: float, real: float) -> float | None:
    """None where nothing was made."""
    return simulated / real if real > 0 else None


def assumptions(documents: Sequence[Document]) -> tuple[str, ...]:
    """What the curves assume, one sentence for each kind."""
    found = dict.fromkeys(
        f"Network of {8 * each['assumed']['link_bytes_per_s'] / 1e6:,.0f} Mbit/s from one parameter process; actors of "
        f"a machine, which get one copy of a version: {each['assumed']['actors_per_machine']}; replay shards: "
        f"{each['assumed']['replay_shards']}."
        for each in documents
    )
    return tuple(found)


def machines(documents: Sequence[Document]) -> tuple[str, ...]:
    """Where, when, with which command."""
    return tuple(
        f"{each['setup']['model']}: {each['machine']}; {each['time'][:10]}; load average {each['load']:g} over the "
        f"last 15 minutes; code {each['code']}; {each['command']}."
        for each in documents
    )
