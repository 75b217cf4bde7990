"""PolicySpec: round trip, refusals that name the field, and the check of what a consumer feeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quarl.policy.errors import SpecError
from quarl.policy.spec import (
    Activation,
    ArtifactFormat,
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    executions,
)

TEXT: Any = str  # gives a text where an enum is wanted
FIELDS = (
    ObservationField("ranges", (2, 2), "m"),
    ObservationField("bearing", (), "rad"),
    ObservationField("velocity", (2,), "m/s"),
)
SPEC = PolicySpec(
    name="III",
    observation=FIELDS,
    normaliser=Normaliser(tuple(0.1 * i for i in range(7)), tuple(1.0 + i for i in range(7)), 5.0),
    network=NetworkSpec((4096, 512, 1024)),
    head=DiscreteHead(("forward", "yaw left")),
    control_period_s=0.25,
    environment=EnvironmentSpec("AirLearning/Navigation-v0", {"preset": "hard", "wind": [0.0, 1.5]}),
    provenance={"algorithm": "ppo", "seed": 3, "note": "Küçük–größer"},
)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, head=ContinuousHead((-1.0, 0.0), (1.0, 9.81), Squash.TANH)),
        replace(SPEC, normaliser=replace(SPEC.normaliser, clip=float("inf")), network=NetworkSpec(())),
    ],
)
def test_round_trip(spec: PolicySpec) -> None:
    text = spec.to_json()
    assert PolicySpec.from_json(text) == spec
    assert PolicySpec.from_json(text.encode()) == spec
    assert PolicySpec.from_json(text).to_json() == text
    assert text.endswith("}\n") and "Infinity" not in text


def test_sizes_follow_from_the_fields() -> None:
    assert SPEC.observation_size == 7
    assert SPEC.output_size == 2
    assert SPEC.is_discrete


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    data = json.loads(SPEC.to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format_version=2), "format_version"),
        (lambda d: d.pop("format_version"), "format_version"),
        (lambda d: d.update(format_version=True), "format_version"),
        (lambda d: d.update(format_version=1.0), "format_version"),
        (lambda d: d.pop("control_period_s"), "lacks the field 'control_period_s'"),
        (lambda d: d["normaliser"].pop("clip"), "lacks the field 'clip'"),
        (lambda d: d["observation"][1].pop("unit"), "lacks the field 'unit'"),
        (lambda d: d["head"].update(kind="mixture"), "discrete, continuous"),
        (lambda d: d["head"].update(kind=[]), "discrete, continuous"),
        (lambda d: d["head"].update(kind={}), "discrete, continuous"),
        (lambda d: d.update(quantization=None), "have a value"),
        (lambda d: d.update(features=[], targets=[]), r"not know: \['features', 'targets'\]"),
        (lambda d: d["network"].update(activation="gelu"), r"network\.activation"),
        (lambda d: d["network"].update(hidden=[64, 0]), "network.hidden"),
        (lambda d: d["network"].update(hidden="64"), r"network\.hidden"),
        (lambda d: d["network"].update(hidden=[64.5]), r"network\.hidden"),
        (lambda d: d["network"].update(hidden=[True]), r"network\.hidden"),
        (lambda d: d.update(network=[64]), "be an object"),
        (lambda d: d.update(observation={}), "observation must be"),
        (lambda d: d["observation"][0].update(shape=[float("inf")]), r"observation\[0\]\.shape"),
        (lambda d: d["normaliser"]["mean"].__setitem__(0, 10**400), r"normaliser\.mean"),
        (lambda d: d["normaliser"]["mean"].__setitem__(0, 1e39), "mean must be finite in float32"),
        (lambda d: d["normaliser"]["scale"].__setitem__(0, 1e-39), "scale must be positive and between"),
        (lambda d: d["normaliser"]["scale"].__setitem__(0, float("nan")), r"normaliser\.scale"),
        (lambda d: d["head"].update(action_names=["go", "stay", "go"]), r"names an action twice: \['go'\]"),
        (lambda d: d.update(control_period_s=float("inf")), "control_period_s"),
        (lambda d: d.update(name=["III"]), "be a string"),
        (lambda d: d["normaliser"]["mean"].pop(), "scales"),
        (lambda d: d["normaliser"]["scale"].__setitem__(2, 0.0), "scale must be positive"),
        (lambda d: d["normaliser"].update(clip=-1.0), "must be positive"),
        (lambda d: d["observation"].pop(), "normaliser"),
        (lambda d: d["observation"][1].update(name="ranges"), "repeats a field name"),
        (lambda d: d["observation"][0].update(shape=[2, -2]), "'ranges'"),
        (lambda d: d["head"].update(action_names=["only"]), "needs at least"),
        (lambda d: d.update(control_period_s=0), "must be positive"),
        (lambda d: d.update(name=""), "to 64 letters"),
    ],
)
def test_a_spec_that_is_none_is_refused_by_the_name_of_the_field(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        PolicySpec.from_json(changed(change))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", b"\xff\xfe", "null", "[" * 100_000])
def test_text_that_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(SpecError, match=r"policy\.json cannot be read: it is not"):
        PolicySpec.from_json(text)


@pytest.mark.parametrize(
    ("low", "high"),
    [((0.0,), (0.0,)), ((1.0,), (0.0,)), ((0.0,), (float("inf"),)), ((0.0,), (1e39,)), ((0.0, 0.0), (1.0,)), ((), ())],
)
def test_continuous_bounds_have_to_be_ordered_and_finite(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    with pytest.raises(SpecError):
        ContinuousHead(low, high, Squash.CLIP)


@pytest.mark.parametrize(
    ("fed", "words"),
    [
        (FIELDS[:2], "'velocity' of shape"),
        ((*FIELDS, ObservationField("wind", (2,), "m/s")), "field 3"),
        (FIELDS[::-1], "'velocity'"),
        ((FIELDS[0], replace(FIELDS[1], unit="deg"), FIELDS[2]), "'bearing'"),
        ((replace(FIELDS[0], shape=(4,)), *FIELDS[1:]), "'ranges' of shape"),
    ],
)
def test_a_consumer_that_feeds_other_fields_is_told_which(fed: tuple[ObservationField, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        SPEC.check_observation(fed)


def test_a_consumer_that_feeds_the_same_fields_is_accepted() -> None:
    SPEC.check_observation(tuple(replace(f) for f in FIELDS))


def test_precisions_by_bits_and_by_name() -> None:
    assert [Precision.from_bits(bits).value for bits in (32, 16, 8, 4, 2)] == ["fp32", "fp16", "int8", "int4", "int2"]
    assert Precision.parse("8") is Precision.parse("int8") is Precision.INT8
    assert (Precision.parse("mixed"), Precision.parse("w8")) == (Precision.MIXED, Precision.W8)
    assert [Precision.parse(p.bits_argument) for p in Precision] == list(Precision)
    assert [p.bits for p in Precision] == [32, 16, 8, 7, 6, 5, 4, 3, 2, 4, 8, 4, 8]
    alone = [p for p in Precision if p.is_weight_only]
    assert alone == [Precision.W8, Precision.W4, Precision.DYNAMIC]
    assert [p for p in Precision if not p.is_integer] == [Precision.FP32, Precision.FP16, *alone]
    for wrong in ("1", "9", "64", "int16", "float"):
        with pytest.raises(SpecError, match="precision must be"):
            Precision.parse(wrong)


def test_each_runtime_reads_one_format() -> None:
    assert RuntimeName.ONNXRUNTIME.artifact_format is ArtifactFormat.ONNX
    assert RuntimeName.LITERT.artifact_format is RuntimeName.TFLITE_RUNTIME.artifact_format is ArtifactFormat.TFLITE
    assert Activation.RELU.value == "relu"


def pilot(**changes: Any) -> PolicySpec:
    head = ContinuousHead((-1.0, 0.0), (1.0, 9.81), Squash.TANH, names=("roll", "thrust"), unit="N")
    return replace(SPEC, head=head, **changes)


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, network=NetworkSpec((4, 4), Activation.ELU)),
        replace(SPEC, network=NetworkSpec((4, 4), Activation.ELU, activations=(Activation.ELU, Activation.NONE))),
        replace(SPEC, network=NetworkSpec((), Activation.LEAKY_RELU, negative_slope=0.2)),
        replace(SPEC, normaliser=Normaliser((0.0,) * 7, (1.0,) * 7, float("inf"), (-1.0,) * 7, (2.0,) * 7)),
        pilot(delay_s=0.04, fallback=(0.0, 9.81)),
        replace(SPEC, fallback=(1.0,)),
        replace(pilot(), head=ContinuousHead((-1.0,), (1.0,), Squash.NONE, limit=2.0)),
        replace(SPEC, observation=(replace(FIELDS[0], element_names=("a", "b", "c", "d")), *FIELDS[1:])),
    ],
)
def test_what_foreign_policies_need_comes_back_from_json(spec: PolicySpec) -> None:
    assert PolicySpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NetworkSpec((4,), TEXT("relu")), r"network\.activation"),
        (lambda: ContinuousHead((0.0,), (1.0,), TEXT("tanh")), r"head\.squash"),
        (lambda: NetworkSpec((4,), activations=(Activation.ELU,)), r"network\.activation, 'relu'"),
        (lambda: NetworkSpec((4, 4), activations=(Activation.RELU,)), "or 2"),
        (lambda: NetworkSpec((4,), Activation.LEAKY_RELU, negative_slope=-0.1), "negative_slope"),
        (lambda: Normaliser((0.0,), (1.0,), 5.0, (-1.0,), (1.0,)), "a clip"),
        (lambda: Normaliser((0.0,), (1.0,), float("inf"), (1.0,), (1.0,)), "with low < high"),
        (lambda: Normaliser((0.0,), (1.0,), float("inf"), (), (1.0,)), "0 lows and 1 highs for 1 means"),
        (lambda: ContinuousHead((0.0,), (1.0,), Squash.NONE, limit=0.0), r"head\.limit"),
        (lambda: ContinuousHead((0.0,), (1.0,), Squash.NONE, names=("a", "b")), "names or"),
        (lambda: pilot(fallback=(0.0, 10.0)), "within the head's bounds"),
        (lambda: pilot(fallback=(0.0,)), "2 finite numbers"),
        (lambda: replace(SPEC, fallback=(99.0,)), "the index of one of its"),
        (lambda: pilot(delay_s=-1.0), "delay_s"),
    ],
)
def test_what_no_contract_can_say_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()


def test_a_precision_is_executed_by_runtimes_that_express_it() -> None:
    dynamic, both = Precision.DYNAMIC, [RuntimeName.LITERT, RuntimeName.NATIVE]
    expected = [(dynamic, RuntimeName.NATIVE), (Precision.INT8, both[0]), (Precision.INT8, both[1])]
    assert executions([dynamic, Precision.INT8], both) == expected
    with pytest.raises(SpecError, match="--runtime native"):
        executions([Precision.INT8, dynamic], [RuntimeName.LITERT])
