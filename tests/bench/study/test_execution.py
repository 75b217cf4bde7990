"""What is said about the execution of a width: never size or speed that no artifact has."""

from __future__ import annotations

import pytest

from quarl.bench.study.measures.execution import execution_of
from quarl.convert.pipeline import build, execution
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.quantize import Scheme
from quarl.policy.spec import ArtifactFormat, Precision


@pytest.mark.parametrize(
    ("scheme", "weights", "activations", "artifact"),
    [
        (Scheme.SYMMETRIC, 8, 8, "int8"),
        (Scheme.SYMMETRIC, 4, 8, "int4"),
        (Scheme.SYMMETRIC, 4, 4, None),  # activations of 4 bits only where it was trained so
        (Scheme.SYMMETRIC, 4, None, None),  # weights alone
        (Scheme.SYMMETRIC, 10, 10, None),
        (Scheme.QUARL, 8, 8, None),
        (Scheme.QUARL_RELEASED, 8, None, None),
        (Scheme.QUARL, 32, None, "fp32"),
        (Scheme.QUARL, 32, 4, None),
        (Scheme.FP16, 16, None, "fp16"),
    ],
)
def test_what_has_an_artifact(scheme: Scheme, weights: int, activations: int | None, artifact: str | None) -> None:
    found = execution_of(scheme, weights, activations)
    assert found.artifact == artifact
    assert ("simulated" in found.words) == (artifact is None)


def test_fewer_bits_than_eight_claim_nothing() -> None:
    found = execution_of(Scheme.SYMMETRIC, 3, 8)
    assert "int8 container, levels −3 … 3, unpacked (1 byte a weight)" in found.words
    assert "size, speed and kernel are int8's" in found.words


def test_trained_widths_have_an_artifact_of_their_own_activations() -> None:
    assert execution_of(Scheme.SYMMETRIC, 4, 4, trained=True).artifact == "int4"
    assert execution_of(Scheme.SYMMETRIC, 4, 8, trained=True).artifact is None


def test_the_container_is_as_large_as_said() -> None:
    """The int4 artifact of a real policy is as large as its int8 one, and says so itself."""
    bundle = Bundle.load(ZOO / "I")
    int8, int4 = (build(bundle, precision, ArtifactFormat.TFLITE) for precision in (Precision.INT8, Precision.INT4))
    assert len(int8.data) == len(int4.data)
    weights = sum(value.size for name, value in bundle.weights().items() if name.endswith("kernel"))
    assert "1 byte a weight" in execution_of(Scheme.SYMMETRIC, 4, 8).words
    assert weights <= len(int4.data) < 2 * weights
    assert "int8 container" in execution(bundle.spec, int4)
