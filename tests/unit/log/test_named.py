"""What an event names is read off its payload, whatever its type (spec EVT-6, EVT-2b)."""

from __future__ import annotations

from typing import Any

import pytest

from salience.log.named import named_blobs, named_in, nested_blobs, with_references
from salience.model.event import PAYLOADS, place_of

A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"text_ref": A, "content_hash": B, "bundle_hash": C}, [A]),
        ({"checkpoint": {"record_ref": A, "summary_ref": B}, "again_ref": A}, [A, B]),
        ({"patch": {"facts": [{"source_refs": [f"blob:{A}", "r:1:call", "b" * 63]}]}}, [A]),
        ({"text": A, "text_ref": None, "ref": B}, []),
        ({}, []),
    ],
)
def test_blobs_stand_in_fields_that_end_in_ref(payload: dict[str, Any], named: list[str]) -> None:
    assert named_blobs(payload) == named


def test_every_reference_to_a_blob_that_an_event_type_has_is_found() -> None:
    """A field of a payload that holds one and is not called so would be missing from every export."""
    for name, payload in PAYLOADS.items():
        fields = [field for field in payload.model_fields if field.endswith("_ref")]
        assert named_blobs(dict.fromkeys(fields, A)) == ([A] if fields else []), name


def test_only_what_the_runtime_wrote_is_read_for_further_names() -> None:
    assert nested_blobs({"bundle": {"environment_ref": A}, "output_ref": B}) == [A]
    assert named_in({"tools_ref": A, "instructions": [{"digest": B}, {"digest": 7}, 3], "other_ref": C}) == [A, B]
    assert named_in([1]) == named_in({"instructions": 5}) == []


def test_references_are_renamed_and_words_are_not() -> None:
    payload = {
        "text": "r:1:x",
        "preview": "r:1:x",
        "event_id": "r:1:x",
        "patch": {"facts": [{"source_refs": ["r:1:x", "elsewhere"], "content": "r:1:x"}]},
        "evidence": ["r:1:x"],
        "source": {"seq": 3, "head": A},
        "usage": {"seq": 3, "head": A, "more": 1},
    }
    again = with_references(payload, lambda one: {"r:1:x": "NEW"}.get(one, one), lambda seq: (seq + 1, B))
    assert again == {
        "text": "r:1:x",
        "preview": "r:1:x",
        "event_id": "NEW",
        "patch": {"facts": [{"source_refs": ["NEW", "elsewhere"], "content": "r:1:x"}]},
        "evidence": ["NEW"],
        "source": {"seq": 4, "head": B},
        "usage": {"seq": 3, "head": A, "more": 1},
    }


@pytest.mark.parametrize(
    ("event_id", "place"),
    [
        ("0-1-2:17:call:call_3_0", ("0-1-2", 17)),
        ("0-1-2:1:session", ("0-1-2", 1)),
        (f"import:{A}:12", (f"import:{A}", 12)),
        ("", ("", 0)),
        ("odd", ("odd", 0)),
    ],
)
def test_an_event_id_names_its_run_and_place(event_id: str, place: tuple[str, int]) -> None:
    assert place_of(event_id) == place
