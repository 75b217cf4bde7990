"""An import in sentences."""

from __future__ import annotations

import math

import jinja2
import numpy as np

from quarl.convert.importers.importing import Imported
from quarl.policy.ladder import AUTO
from quarl.policy.locate import shorten_path
from quarl.policy.spec import ContinuousHead, PolicySpec, Squash
from quarl.train.intervals import brackets

TEMPLATE = """\
{{ policy.source }}
  observation  {% for field in spec.observation %}{{ field.name }} {{ field.shape | join("×") }} [{{ field.unit }}]\
{{ ", " if not loop.last }}{% endfor %}; a decision every {{ "%.4g" | format(1000 * spec.control_period_s) }} ms
  network      {{ network }}
  actions      {{ actions }}
{% if spec.network.opaque %}
  onnxruntime  alone executes it, in fp32, fp16 and int8: no TFLite, native or fewer bits. \
{{ spec.network.opaque.reason }}
{% endif %}
{% for phrase in policy.ignored %}
  left out     {{ phrase }}
{% endfor %}
{% for sentence in policy.assumed %}
  assumed      {{ sentence }}
{% endfor %}
{% for sentence in warnings %}
  warning      {{ sentence }}
{% endfor %}
  as the original, by {{ proof.by }}: outputs {{ "%.2g" | format(proof.near) }} apart at most, {{ "%.2g" | \
format(proof.far) }} far from the data; they span {{ "%.3g" | format(proof.span) }}\
{% if proof.flown is not none %}; {{ "%.2g" | format(proof.flown) }} over an episode, states fed back{% endif %}\
. In fp32 \
{% for name, apart in proof.runtimes.items() %}{{ name }} {{ "%.2g" | format(apart) }}{{ ", " if not loop.last }}\
{% endfor %}.
{% for name, row in returns.items() %}
  {{ "%-8s" | format(name) }} return {{ "%.2f" | format(row.mean_return) }} {{ brackets(row.return_interval, ".2f") }}\
{% if name != "original" %}, minus the original's {{ "%+.2f" | format(row.minus_original) }} \
{{ brackets(row.minus_original_interval, "+.2f") }}{% endif %}

{% endfor %}
{% if ladder %}
{{ ladder }}
{% endif %}
{% if not spec.fallback %}
  fallback     none; a robot's loop needs one, named here or with quarl serve: {{ spec.fallback_example }}
{% endif %}
{% if path %}
Written: {{ path }}. Next: quarl convert --bits {{ bits }} --policy \
{{ spec.name if at_home else path }}
{% else %}
Nothing was written: --dry-run.
{% endif %}
"""


def network_words(spec: PolicySpec) -> str:
    """``8 × 8, tanh``; ``conv 8 × conv 8 × 16, relu``; ``LSTM 256 × 64, tanh``; ``linear``."""
    network = spec.network
    if network.opaque:
        return f"opaque: an ONNX graph of {network.opaque.size:,} bytes"
    kinds = dict.fromkeys(kind.value for kind in network.activations or (network.activation,))
    dense = [str(width) for width in network.hidden]
    for layer in reversed(network.recurrences):
        dense[layer.behind : layer.behind] = [f"{layer.cell.value.upper()} {layer.units}"]
    layers = [f"conv {layer.filters}" for layer in network.convolutions] + dense
    activated = network.convolutions or network.hidden
    return f"{' × '.join(layers)}{', ' if activated else ''}{', '.join(kinds) if activated else ''}" or "linear"


def describe_squash(head: ContinuousHead) -> str:
    """``as they are``; ``clipped to -2 … 2``; ``by tanh to -2 … 2``: the least and the largest of all elements."""
    low, high = np.array(head.low), np.array(head.high)
    if head.squash is Squash.NONE:
        if head.limit == math.inf:
            return "as they are"
        centre, half = (low + high) / 2, (high - low) / 2 * head.limit
        low, high = centre - half, centre + half
    return f"{'by tanh' if head.squash is Squash.TANH else 'clipped'} to {low.min():g} … {high.max():g}"


def words(done: Imported) -> str:
    """Return what was read, what was left out, how far it is from the original, and what to type next."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    spec, head = done.spec, done.spec.head
    actions = head.describe()
    if isinstance(head, ContinuousHead):
        actions += f", {describe_squash(head)}"
    return environment.from_string(TEMPLATE).render(
        policy=done.policy,
        spec=spec,
        network=network_words(spec),
        actions=actions,
        warnings=done.warnings,
        proof=done.proof,
        returns=done.returns,
        bits=8 if done.ladder is None else AUTO,
        ladder=done.ladder and done.ladder.describe(spec.name),
        brackets=brackets,
        path=None if done.path is None else shorten_path(done.path),
        at_home=done.path is not None and done.path.parent.name == "artifacts",
    )
