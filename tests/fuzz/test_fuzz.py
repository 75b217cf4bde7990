"""Mutated bundles, lines and fleet files are refused by name, or act as they say; ``python -m tests.fuzz`` tries more
of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.__main__ import base_bundle, run
from tests.fuzz.values import NASTY, RAW, spoiled, text_of

MOST_BYTES = 100e6


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_bundle(tmp_path_factory.mktemp("base") / "I")


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        ("bundles", 0, 200),
        ("lines", 0, 3_000),
        ("fleet", 0, 500),
        pytest.param("lines", 3_000, 6_000, marks=pytest.mark.slow),
    ],
)
def test_whatever_is_wrong_is_refused_by_name(kind: str, first: int, count: int, base: Path) -> None:
    outcome = run(kind, first, count, seed=0, base=base)
    assert not outcome.wrong
    assert sum(outcome.counts.values()) == count
    assert outcome.most_bytes < MOST_BYTES
    refused = sum(number for word, number in outcome.counts.items() if word.startswith("refused"))
    assert 0.3 * count < refused < 0.95 * count, "nothing, or nothing else, was refused: the fuzzer is blunt"


def test_raw_values_stand_in_a_document_without_quotes() -> None:
    assert text_of({"a": [RAW + "NaN", "b"]}) == b'{"a": [NaN, "b"]}'
    assert text_of({"a": RAW + '{"b":1}'}) == b'{"a": {"b":1}}'
    assert text_of("\ud800") == b'"\\ud800"'


def test_a_document_is_spoiled_in_one_place_and_the_original_stays() -> None:
    document = {"a": [1, 2, {"b": "c"}], "d": None}
    made = [spoiled(document, random.Random(seed)) for seed in range(200)]
    assert document == {"a": [1, 2, {"b": "c"}], "d": None}
    assert sum(each != document for each in made) > 150
    assert len({text_of(each) for each in made}) > 50 and len(NASTY) > 50
