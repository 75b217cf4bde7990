"""Documents checked against a JSON schema, with one sentence for what is wrong."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class InvalidDocumentError(ValueError):
    """A document does not match the schema; the message names the first place that does not."""


def load_schema(path: Path) -> dict[str, Any]:
    """Read a schema.

    Raises:
        jsonschema.SchemaError: it is none.
    """
    from jsonschema import Draft202012Validator

    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return schema


def validate(document: Any, schema: Mapping[str, Any]) -> None:
    """Check a JSON value against a schema.

    Raises:
        InvalidDocumentError: says where, what was found and what is allowed.
    """
    from jsonschema.exceptions import best_match

    if (error := best_match(_validator(json.dumps(schema)).iter_errors(document))) is not None:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        raise InvalidDocumentError(f"report{where}: {error.message}.")
    try:
        json.dumps(document, allow_nan=False)
    except ValueError as error:
        raise InvalidDocumentError(f"the report holds a number that JSON does not have: {error}.") from None


@functools.cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))
