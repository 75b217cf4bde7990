"""From a bundle to an artifact that is listed in its manifest: build, execute everywhere, compare, then write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter

import numpy as np

from quarl.convert import onnx_graph, opaque, tflite_graph
from quarl.convert.acceptance import agreement
from quarl.convert.calibration import inspect
from quarl.convert.executor import ExecutionError, RuntimeProcess, available, runtime_processes
from quarl.convert.mixed import recipe_of, weight_bits
from quarl.convert.native.floats import float_artifact
from quarl.convert.native.writer import native_artifact
from quarl.convert.parity import NoRuntimeError, ParityError, check
from quarl.convert.reference import Reference, float_reference, integer_reference
from quarl.device.engine.engine import library
from quarl.policy.bundle import Bundle, Contents, Expected, add_artifact
from quarl.policy.errors import QuantizationError
from quarl.policy.ladder import require_min_agreement
from quarl.policy.reading import ArtifactEntry, FileRecord, Parity
from quarl.policy.reference import IntegerNetwork, WeightBits, Weights
from quarl.policy.simulate import find_trained_quantizers, quantize_network
from quarl.policy.spec import (
    LARGEST_WEIGHT_BITS,
    PROGRAM,
    ArtifactFormat,
    NetworkSpec,
    PolicySpec,
    Precision,
    Ranges,
    Recipe,
    RuntimeName,
)

Runtimes = Mapping[RuntimeName, RuntimeProcess]
Job = tuple[Bundle, Precision, ArtifactFormat]
INTEGERS = {
    ArtifactFormat.TFLITE: tflite_graph.integer_graph,
    ArtifactFormat.ONNX: onnx_graph.integer_graph,
    ArtifactFormat.NATIVE: native_artifact,
}
INTEGER_KERNELS = "QLinear", "QGemm", "MatMulInteger"
"""What the names of onnxruntime's integer kernels begin with."""
FLOATS = {
    ArtifactFormat.TFLITE: tflite_graph.float_graph,
    ArtifactFormat.ONNX: onnx_graph.float_graph,
    ArtifactFormat.NATIVE: float_artifact,
}


@dataclass(frozen=True)
class Quantized:
    """A bundle's policy in one precision: what its artifacts share, whatever their format.

    Attributes:
        precision: which.
        contents: what it was made from.
        reference: what an artifact has to compute on the golden observations.
        network: the policy in integers; None of a precision that computes with floats.
        recipe: by which it was made, likewise.
        warnings: of the calibration set, likewise.
        program: an opaque program's artifact; empty of any other policy.
    """

    precision: Precision
    contents: Contents
    reference: Reference
    network: IntegerNetwork | None = None
    recipe: Recipe | None = None
    warnings: tuple[str, ...] = ()
    program: bytes = b""


@dataclass(frozen=True)
class ArtifactCandidate:
    """An artifact that has been built and not been checked yet."""

    quantized: Quantized
    format: ArtifactFormat
    data: bytes

    @property
    def reference(self) -> Reference:
        """What it has to compute on the golden observations."""
        return self.quantized.reference

    @property
    def file(self) -> str:
        """The artifact's file name in the bundle, e.g. ``int8.tflite``."""
        return f"{self.quantized.precision.value}.{self.format.value}"


@dataclass(frozen=True)
class Converted:
    """An artifact that passed and was written.

    Attributes:
        policy: the policy's name.
        entry: as it stands in the manifest.
        fp32_bytes: size of the fp32 artifact of the same format.
    """

    policy: str
    entry: ArtifactEntry
    fp32_bytes: int


def build_graph(
    spec: PolicySpec,
    weights: Weights,
    calibration: np.ndarray,
    precision: Precision,
    artifact_format: ArtifactFormat,
) -> bytes:
    """Return the artifact's bytes, not yet verified; nothing is executed.

    Args:
        spec, weights: the policy.
        calibration: raw observations (n, observation_size) from rollouts; not looked at for floats.
        precision: of the weights.
        artifact_format: which.

    Raises:
        QuantizationError: the format cannot express this policy in this precision.
    """
    if spec.network.opaque:
        return opaque.build(spec, weights[PROGRAM], calibration, precision)
    if precision.is_integer:
        network = quantize_network(spec, weights, calibration, weight_bits(spec, weights, calibration, precision))
        return INTEGERS[artifact_format](spec, network)
    return FLOATS[artifact_format](spec, weights, precision)


def quantize(bundle: Bundle, precision: Precision, recipe: Recipe | None = None) -> Quantized:
    """Quantize a bundle's policy to a precision, and compute what its artifacts have to on the golden observations."""
    spec, contents = bundle.spec, Contents.of(bundle)
    weights, observations = contents.weights, contents.golden.observations
    if precision.is_integer and not len(contents.calibration):
        raise QuantizationError(
            f"policy {spec.name!r} has no recorded observations to calibrate integers on.",
            "Import it again with --observations rollouts.npz --replace, or type --bits 32 or 16.",
        )
    if spec.network.opaque:
        if recipe is not None and recipe.ranges is not Ranges.MINMAX:
            message = f"policy {spec.name!r} is an opaque program, whose ranges are always minmax."
            raise QuantizationError(message, "Leave --ranges out.")
        data = opaque.build(spec, weights[PROGRAM], contents.calibration, precision)
        expected, recipe = opaque.reference(spec, data, contents, precision), Recipe(precision.bits)
        return Quantized(precision, contents, expected, recipe=recipe if precision.is_integer else None, program=data)
    if precision.is_integer:
        recipe = recipe or recipe_of(bundle, precision)
        network = quantize_network(spec, weights, contents.calibration, recipe.bits, recipe.ranges)
        reference = integer_reference(spec, network, observations)
        warnings = inspect(spec, weights, network, contents.calibration, observations).warnings
        return Quantized(precision, contents, reference, network, recipe, warnings)
    # fp32 has to compute what was recorded when the policy was trained.
    recorded = contents.golden.outputs if precision is Precision.FP32 else None
    return Quantized(precision, contents, float_reference(spec, weights, observations, recorded, precision))


def build(
    bundle: Bundle, precision: Precision, artifact_format: ArtifactFormat, recipe: Recipe | None = None
) -> ArtifactCandidate:
    """Build an artifact of a bundle and the reference it has to meet on the bundle's golden observations."""
    return build_candidate(bundle.spec, quantize(bundle, precision, recipe), artifact_format)


def build_candidate(spec: PolicySpec, quantized: Quantized, artifact_format: ArtifactFormat) -> ArtifactCandidate:
    """Build an artifact of a policy in a precision; nothing is executed."""
    if reason := opaque.impossible(spec, artifact_format, quantized.precision):
        hint = (
            "Type --bits 32, 16 or 8, without --format."
            if quantized.program
            else "Type --format native, or other --bits."
        )
        raise QuantizationError(reason, hint)
    if quantized.program:
        return ArtifactCandidate(quantized, artifact_format, quantized.program)
    if quantized.network is not None:
        return ArtifactCandidate(quantized, artifact_format, INTEGERS[artifact_format](spec, quantized.network))
    data = FLOATS[artifact_format](spec, quantized.contents.weights, quantized.precision)
    return ArtifactCandidate(quantized, artifact_format, data)


def check_parities(bundle: Bundle, candidate: ArtifactCandidate, runtimes: Runtimes) -> dict[RuntimeName, Parity]:
    """Execute a candidate in every one of these runtimes that reads its format.

    Raises:
        ParityError: it fails in one of them, or none of them reads it; nothing is written.
    """
    parities = {}
    name = f"{bundle.spec.name}/{candidate.file}"
    for runtime, process in runtimes.items():
        if runtime.artifact_format is not candidate.format:
            continue
        try:
            execution = process.execute(bundle.spec, candidate.data, candidate.reference.observations)
        except ExecutionError as error:
            raise ParityError(f"{name}: {error} Nothing was written.") from error
        parities[runtime] = check(runtime, name, bundle.spec, execution, candidate.reference)
    if not parities:
        raise NoRuntimeError(
            f"{name}: no installed runtime executes {candidate.format.value}. Nothing was written.",
            format=candidate.format.value,
        )
    return parities


def convert(
    bundle: Bundle,
    precision: Precision,
    artifact_format: ArtifactFormat,
    runtimes: Runtimes,
    *,
    accept: bool = False,
) -> Converted:
    """Build, judge and write one artifact.

    Raises:
        ParityError: a runtime does not compute it rightly. Nothing was written.
        AcceptanceError: its agreement with the policy is below the threshold, without ``accept``; nothing was written.
    """
    return _convert(bundle, quantize(bundle, precision), artifact_format, runtimes, accept)


def _convert(
    bundle: Bundle, quantized: Quantized, artifact_format: ArtifactFormat, runtimes: Runtimes, accept: bool
) -> Converted:
    precision, contents, reference = quantized.precision, quantized.contents, quantized.reference
    candidate, recipe = build_candidate(bundle.spec, quantized, artifact_format), quantized.recipe
    fp32_agreement = agreement(bundle.spec, reference.outputs, contents.golden.outputs)
    if not accept:
        require_min_agreement(bundle.spec, candidate.file, recipe, fp32_agreement, quantized.warnings)
    parities = check_parities(bundle, candidate, runtimes)
    entry = ArtifactEntry(
        file=candidate.file,
        precision=precision,
        format=artifact_format,
        scheme=scheme(bundle.spec, candidate),
        execution=execution(bundle.spec, candidate),
        record=FileRecord.of(candidate.data),
        golden_file=f"{precision.value}.golden.npz",
        output_step=None if reference.step is None else tuple(map(float, reference.step)),
        runtimes=parities,
        most_off=reference.most_off,
        fp32_agreement=fp32_agreement,
        layer_bits=recipe.bits if recipe is not None and isinstance(recipe.bits, Mapping) else None,
        ranges=Ranges.MINMAX if recipe is None else recipe.ranges,
        warnings=quantized.warnings,
        not_tried=tuple(
            name for name in RuntimeName if name.artifact_format is artifact_format and name not in parities
        ),
    )
    written = add_artifact(bundle, entry, candidate.data, Expected(reference.outputs, reference.tolerance))
    fp32 = candidate.data
    if bundle.spec.network.opaque:
        fp32 = contents.weights[PROGRAM].tobytes()
    elif precision is not Precision.FP32:
        fp32 = FLOATS[artifact_format](bundle.spec, contents.weights)
    return Converted(bundle.spec.name, written.manifest.artifacts[entry.file], len(fp32))


def convert_all(
    bundles: Iterable[Bundle],
    precisions: Iterable[Precision],
    formats: Iterable[ArtifactFormat],
    *,
    accept: bool = False,
) -> list[Converted]:
    """Convert every bundle to every precision in every format that can express it; as :func:`convert_each`."""
    return convert_each(possible(product(bundles, precisions, formats)), accept=accept)


def possible(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs whose format can express the policy in the precision."""
    return [job for job in jobs if not opaque.impossible(job[0].spec, job[2], job[1])]


def missing(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs whose artifact the bundle does not have yet, or has not tried in a runtime that is installed
    now."""
    here = set(available())
    return [
        (bundle, precision, form)
        for bundle, precision, form in jobs
        if not bundle.has_artifact(precision, form) or here & set(bundle.artifact(precision, form).not_tried)
    ]


def convert_each(
    jobs: Sequence[Job],
    on_artifact: Callable[[Converted], None] = lambda converted: None,
    *,
    accept: bool = False,
    ranges: Ranges | None = None,
) -> list[Converted]:
    """Make these artifacts, in order; each runtime is started once.

    Args:
        jobs: what to make.
        on_artifact: is told of each.
        accept: write an artifact also if its agreement with the policy is below the threshold, as measurements do.
        ranges: of the activations of integers; None: as :func:`convert.mixed.recipe_of`.

    Raises:
        ParityError, AcceptanceError: name the first artifact that fails; those before it are written, it and those
            after it are not.
    """
    formats = {artifact_format for _, _, artifact_format in jobs}
    if ArtifactFormat.NATIVE in formats:
        library()  # compiled here, where a full disk is this command's error and not the artifact's
    done = []
    with runtime_processes(tuple(r for r in available() if r.artifact_format in formats)) as runtimes:
        for (bundle, precision), group in groupby(jobs, key=itemgetter(0, 1)):
            recipe = recipe_of(bundle, precision, ranges) if ranges and precision.is_integer else None
            quantized = quantize(bundle, precision, recipe)
            for *_, artifact_format in group:
                Contents.of(bundle)  # a file that has been written since is refused
                done.append(_convert(bundle, quantized, artifact_format, runtimes, accept))
                on_artifact(done[-1])
    return done


def scheme(spec: PolicySpec, candidate: ArtifactCandidate) -> str:
    """Return how the policy was quantized, in words."""
    recipe = candidate.quantized.recipe
    if candidate.quantized.precision is Precision.FP32:
        return "float32 weights"
    if candidate.quantized.program and recipe is not None:
        return opaque.SCHEME
    if candidate.quantized.precision.is_weight_only:
        is_dynamic = candidate.quantized.precision is Precision.DYNAMIC
        rest = "activations affine per tensor and decision, 8 bits (of convolutions float32); " if is_dynamic else ""
        bits = candidate.quantized.precision.bits
        return f"weights symmetric per output channel, {bits} bits; {rest}everything else float32"
    if recipe is None:
        return "IEEE half weights and biases; normaliser and action scaling float32"
    ends = "" if recipe.ranges is Ranges.MINMAX else f", {recipe.ranges.value}"
    activations, ranges = "8 bits", f"from recorded rollouts{ends}"
    if (trained := find_trained_quantizers(spec, recipe.bits)) is not None:
        activations = f"{trained.bits} bits (8 of the observation and of the head's outputs)"
        ranges = "from quantization-aware training (the head's from recorded rollouts)"
    return (
        f"weights symmetric per output channel, {bits_words(recipe.bits)} bits; activations affine per tensor, "
        f"{activations}, ranges {ranges}; normaliser float32, before the quantization"
    )


def _widening(precision: Precision, form: ArtifactFormat, network: NetworkSpec) -> str:
    """Return where weights become float32, and what that saves, in words."""
    in_container = precision is Precision.W4 and form is not ArtifactFormat.NATIVE
    share = {16: "half", 8: "a quarter of", 4: "an eighth of"}[precision.bits]
    if form is ArtifactFormat.NATIVE or (in_container and form is ArtifactFormat.ONNX and not network.convolutions):
        return f"widened to float32 in registers: {share} the file and the running memory"
    if in_container:
        dense = " (of dense layers as stored, in 4)" if form is ArtifactFormat.ONNX else ""
        return f"4-bit weights in an int8 container{dense}, widened to float32 when loaded: the running memory of fp32"
    return f"widened to float32 when loaded: {share} the file, the running memory of fp32"


def floats_between(network: NetworkSpec) -> tuple[str, ...]:
    """Return what of a network stays float between its integers, in words."""
    norm = ("layer normalisation in float",) if network.layer_norm else ()
    return norm + (("gates of recurrent layers in float",) if network.recurrences else ())


def bits_words(bits: WeightBits) -> str:
    """``4``, or ``dense_0 8, dense_1 4, head 8``."""
    return str(bits) if isinstance(bits, int) else ", ".join(f"{layer} {width}" for layer, width in bits.items())


def execution(spec: PolicySpec, candidate: ArtifactCandidate) -> str:
    """Return how a device executes the artifact, in words."""
    recipe, floats = candidate.quantized.recipe, floats_between(spec.network)
    if candidate.quantized.precision is Precision.FP32:
        return "float32 arithmetic"
    if candidate.quantized.precision is Precision.DYNAMIC:
        rest = "; convolutions float32, their weights widened" if spec.network.convolutions else ""
        words = "int8 × uint8 → int32 in dense layers, float multiplier of each decision"
        return f"{words} (the native engine){rest}"
    if recipe is None:
        return f"{_widening(candidate.quantized.precision, candidate.format, spec.network)}; the arithmetic of fp32"
    if candidate.quantized.program:
        kernels = [
            name for name in onnx_graph.list_executed_operators(candidate.data) if name.startswith(INTEGER_KERNELS)
        ]
        return f"{len(kernels)} integer kernels (onnxruntime), everything else float32"
    if candidate.format is ArtifactFormat.NATIVE:
        words = "packed, each layer's weights in 8, 4 or 2 bits; int32 sums, float multiplier (the native engine)"
        return "; ".join([words, *floats])
    if candidate.format is ArtifactFormat.TFLITE:
        words = "int8 × int8 → int32 (LiteRT: XNNPACK, float multiplier; tflite-runtime: built-in kernels, fixed point)"
    else:
        operators = onnx_graph.list_executed_operators(candidate.data)
        fused, unfused = operators.count("QGemm"), operators.count("Gemm") + operators.count("FusedGemm")
        counts = f"{fused} QGemm, {unfused} float Gemm"
        if convolutions := operators.count("QLinearConv") + operators.count("Conv") + operators.count("FusedConv"):
            counts = f"{operators.count('QLinearConv')} of {convolutions} convolutions QLinearConv, {counts}"
        words = f"int8 × int8 → int32 (onnxruntime: {counts})"
    words = "; ".join([words, *floats])
    if recipe.bits != LARGEST_WEIGHT_BITS:
        width = f"{recipe.bits}-bit" if isinstance(recipe.bits, int) else "mixed"
        words = f"{width} weights in an int8 container: size and speed are int8's; {words}"
    return words
