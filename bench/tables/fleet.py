"""The tables of bench/fleet.py: what each rollout took, what it told of the devices, and what their files say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report.pivot import Pivot

WORDS = """\
Seven rollouts of Policy {{ results.policy }} to {{ results.devices }} embedded devices
The command that is typed, in a process of its own: its time from start to end, its processor time, the most memory \
that it had resident (10⁶ bytes), and what it sent to the devices that switched: a release that is still there is not \
sent again. {{ results.canaries }} canaries, batches of {{ results.batch.removesuffix("%") }} %, \
{{ results.parallel }} devices at a time, each phase watched for {{ results.soak_s | figure }} s. Serving: counted \
afterwards in each device's own files. Half done: a link to nothing, a file that is not as the release's record has \
it, or anything left of a deployment. Told wrongly: devices of which the command told last what their files do not \
say.
Faults: {{ faults | several }}; slow is {{ (results.slow.bytes_per_s / 1e3) | figure }} kB/s and \
{{ (1e3 * results.slow.delay_s) | figure }} ms later. The rollout may fail on as many as die. \
{% for what, why in results.left_out.items() %}Not tried: {{ what }} ({{ why }}). {% endfor %}Without the slow ones, \
{{ ill }} devices could not take the release, and it proved itself on {{ steps.faults.states.proved }} of the other \
{{ results.devices - ill }}; healed, they take it by the same command.
Killed with SIGKILL when {{ third }} devices had switched; within {{ steps.killed.settled_s | figure }} s nothing was \
half done on any. Where the canaries fell, {{ steps.fallen.others_touched }} other devices were touched.
{% set one, more = results.compared %}
One device at a time takes {{ each[0] | digits }} s a device, {{ more.parallel }} at a time {{ each[1] | digits }} s: \
{{ (each[0] / each[1]) | times }} as fast ({{ one.devices }} each, with nothing on them before, without soak). Host \
and devices share the machine's cores and talk over loopback: on Pis, devices compute beside each other, and a \
network lies between.
Measured on {{ results.machine }}; code {{ results.code }}.
"""
LABELS = {
    "first": "{precision}, all well",
    "faults": "{precision}, with faults",
    "healed": "again, healed",
    "idle": "again: nothing to do",
    "killed": "{precision}, killed",
    "resumed": "again",
    "fallen": "{precision}, canaries fall",
    "next": "{precision}",
}
SLOW = "slow"


def rows_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each step."""
    for number, each in enumerate(document["steps"], 1):
        told = ", ".join(f"{count} {state}" for state, count in each["states"].items())
        yield {**each, "label": f"{number}. " + LABELS[each["step"]].format_map(each), "told": told}


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    steps = {each["step"]: each for each in document["steps"]}
    return {
        "steps": steps,
        "faults": [f"{count} {what}" for what, count in document["faults"].items()],
        "ill": sum(count for what, count in document["faults"].items() if what != SLOW),
        "third": document["killed_at"],
        "each": [each["seconds"] / each["devices"] for each in document["compared"]],
    }


FLEET = Pivot(
    name="fleet",
    words=WORDS,
    lead={"rollout": "{{ label }}", "told": "{{ told }}"},
    columns=[
        {
            "s": "{{ seconds | digits }}",
            "CPU-s": "{{ cpu_s | digits }}",
            "MB resident": "{{ peak_bytes | mb }}",
            "MB sent": "{{ sent_bytes | mb }}",
        },
        {"serving the new": "{{ new }}", "the old": "{{ old }}", "none": "{{ empty }}"},
        {"half done": "{{ half_done }}", "told wrongly": "{{ untrue }}"},
    ],
    rows=rows_of,
    facts=_facts,
    gathered=False,
)


NAMED_WORDS = """\
Rollouts of Policy {{ results.policy }} to {{ results.devices }} virtual Pis at once
Two run the agent in Python with LiteRT, one the agent without Python; one canary, then batches of a quarter, each \
phase watched for {{ results.soak_s | figure }} s. A device: seconds from the connection to the switch, least and \
most. The first rollout brings the wheels, unpacked on the emulated card. **Emulated**, all of them on this \
machine's cores, over loopback: what holds is the order of events, the bytes and the host's memory, not the times of \
a Pi.
Measured on {{ results.machine }}; code {{ results.code }}.
"""


def _named_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in rows_of(document):
        times = row["device_s"]
        yield {**row, "least": min(times, default=None), "most": max(times, default=None)}


NAMED = Pivot(
    name="fleet-pis",
    words=NAMED_WORDS,
    lead={"rollout": "{{ label }}", "told": "{{ told }}"},
    columns=[
        {
            "s": "{{ seconds | digits }}",
            "s a device": "{% if least is not none %}{{ least | digits }} – {{ most | digits }}{% else %}–{% endif %}",
            "MB resident": "{{ peak_bytes | mb }}",
            "MB sent": "{{ sent_bytes | mb }}",
            "payloads": "{{ kinds or '–' }}",
        },
    ],
    rows=_named_rows,
    gathered=False,
)
