"""What an event names is read off its payload, whatever its type: blobs under `…_ref`, events in references (spec EVT-6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

_DIGEST: Final = re.compile(r"(?:blob:)?([0-9a-f]{64})")
_REFERENCE: Final = re.compile(r"(?:^|_)(?:event|ref|refs|evidence|source|sources|provenance)(?:_|$)")
NESTED: Final = frozenset({"environment_ref"})
"""Fields whose blobs are written by the runtime and name further blobs. What a tool or a model wrote is never read so: it
could name another session's."""


def named_blobs(payload: Any) -> list[str]:
    """The digests of the blobs a payload cannot do without, each once, in a fixed order.

    A field whose name ends in `_ref` or `_refs` and whose value is a digest, or `blob:` and a digest, names a blob. Fields
    such as `content_hash` say what a file was, not that it was kept.

    Args:
        payload: JSON data.
    """
    return list(dict.fromkeys(ref for name, ref in _refs(payload, "") if name.endswith(("_ref", "_refs"))))


def nested_blobs(payload: Any) -> list[str]:
    """Those of `named_blobs` whose contents name further blobs; see `named_in`."""
    return list(dict.fromkeys(ref for name, ref in _refs(payload, "") if name in NESTED))


def named_in(environment: Any) -> list[str]:
    """The blobs that a stored environment names: its tool contracts and instruction files.

    Args:
        environment: the blob as JSON data.
    """
    fields = _object(environment)
    files = cast("list[Any]", fields.get("instructions")) if isinstance(fields.get("instructions"), list) else []
    named = [fields.get("tools_ref"), *(_object(file).get("digest") for file in files)]
    return [ref for ref in named if isinstance(ref, str) and _DIGEST.fullmatch(ref)]


def with_references(value: Any, event: Callable[[str], str], anchor: Callable[[int], tuple[int, str]]) -> Any:
    """JSON data with its references to events renamed, and its anchors in the journal.

    Only fields that are references by name are touched: words that happen to be an event's id stay as they are.

    Args:
        value: the payload.
        event: gives an event's new id, or the same when it is none of ours.
        anchor: gives the seq and head of the chain at what was a seq.
    """
    return _renamed(value, "", event, anchor)


def _renamed(value: Any, name: str, event: Callable[[str], str], anchor: Callable[[int], tuple[int, str]]) -> Any:
    if isinstance(value, str):
        return event(value) if _REFERENCE.search(name) else value
    if isinstance(value, list):
        return [_renamed(item, name, event, anchor) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if fields.keys() == {"seq", "head"} and isinstance(fields["seq"], int):
        seq, head = anchor(fields["seq"])
        return {"seq": seq, "head": head}
    return {key: _renamed(item, key, event, anchor) for key, item in fields.items()}


def _refs(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        found = _DIGEST.fullmatch(value)
        if found:
            yield name, found.group(1)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _refs(item, name)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _refs(item, key)


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
