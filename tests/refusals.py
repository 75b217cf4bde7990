"""Assert what an error says to a program: its class, its code and its values; the sentence may be worded better."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from quarl.policy.errors import QuarlError

E = TypeVar("E", bound=QuarlError)


@contextmanager
def refused(kind: type[E], code: str, **values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this class that has this code and these values."""
    with pytest.raises(kind) as caught:
        yield caught
    assert_refused(caught.value, code, **values)


def assert_refused(error: QuarlError, code: str, **values: object) -> None:
    """Assert the code and the values of an error that was caught."""
    assert error.code == code, str(error)
    assert {name: error.values.get(name) for name in values} == values
