"""One value has one byte form and one digest: canonical JSON and sha256 (design §8)."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: UTF-8, keys sorted, no spaces, no NaN.

    Args:
        value: plain JSON data (dict, list, str, int, float, bool, None); models go through `model_dump(mode="json")`.

    Returns:
        UTF-8 bytes.

    Raises:
        ValueError: for NaN and infinities.
        UnicodeEncodeError: for a lone surrogate; mend text first (`salience.model.text`).
    """
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(data: bytes | str) -> str:
    """Lower-case hex sha256 of bytes, or of the UTF-8 form of a string."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def digest_of(value: Any) -> str:
    """Digest of a JSON value's canonical form."""
    return digest(canonical_json(value))
