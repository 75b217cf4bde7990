"""Assert what an error says to a program: its class, its code and its values; the sentence may be worded better."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from quarl.policy.errors import QuarlError

E = TypeVar("E", bound=QuarlError)


@contextmanager
def refused(
    kind: type[E], code: str, shows: Collection[str] = (), **values: object
) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this class with this code and these values, whose message shows names and numbers."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code == code, str(error)
    assert {name: error.values.get(name) for name in values} == values
    assert all(value in str(error) for value in shows), (shows, str(error))
