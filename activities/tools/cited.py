"""A statement is verified when it names sources and the session's record has every one; else it is an assumption (PRJ-3).

Which sources there are is decided here, when the tool runs, from the journal: it holds what the model had seen when it
made the call. A call of the same answer is none, because the statement was made before its result was known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from activities.tools.result import Refused, Site
from salience.model.canonical import canonical_json
from salience.model.state import State, StatePatch
from salience.model.text import preview

MAX_REFS = 20
MAX_REF_CHARACTERS = 500
MAX_PATCH_BYTES = 6 * 1024
"""The patch travels in the outcome, which history holds and which stays under 8 KiB."""

REFS: dict[str, Any] = {
    "type": "array",
    "maxItems": MAX_REFS,
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_REF_CHARACTERS},
    "description": (
        "What shows it: ids of earlier calls, paths you read or wrote (path:line too), artifacts, messages, events, "
        "verified facts and decisions."
    ),
}


@dataclass(frozen=True, slots=True)
class Cited:
    """References as they were checked.

    Args:
        known: those the session's record has, in order.
        unknown: the others.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def verified(self) -> bool:
        """Whether there is a source, and every one exists."""
        return bool(self.known) and not self.unknown

    def told(self, what: str) -> str:
        """What the model is told of the check."""
        if self.verified:
            return ""
        if not self.unknown:
            return f"It names no source, so it is kept as an assumption. Name sources under the same {what} to verify it.\n"
        listed = ", ".join(preview(ref, 200) for ref in self.unknown)
        return (
            f"Kept as an assumption: this session's record has no {listed}. A call of this same answer is no source yet; "
            f"name it under the same {what} once you have seen its result.\n"
        )


async def cited(site: Site, state: State, refs: Sequence[str], *, own: str) -> Cited:
    """The references of a statement, checked against the session's record.

    Args:
        site: where the call runs.
        state: the state the model has seen.
        refs: what the statement names.
        own: the statement's id, which shows nothing of it.
    """
    root = f"{site.workspace.root}/"
    named = {ref: ref.strip().removeprefix(root) for ref in refs}
    found = await site.sources.known(site.session_id, state, named.values()) - {own}
    known = dict.fromkeys(plain for plain in named.values() if plain in found)
    return Cited(tuple(known), tuple(ref for ref, plain in named.items() if plain not in found))


def superseded(given: str | None, made: str, known: Sequence[str], what: str) -> str:
    """The id of a statement: a new one, or that of the one it corrects.

    Args:
        given: the id the model named.
        made: the id a new statement gets.
        known: ids there are.
        what: the argument's name.

    Raises:
        Refused: there is no such statement.
    """
    if given is None:
        return made
    if given not in known:
        latest = ", ".join(known[-10:]) or "none"
        raise Refused(
            f"there is no {what} {preview(given, 100)} to correct; the latest are: {latest}. Leave it out for a new one"
        )
    return given


def checked_size(patch: StatePatch, longest: str) -> StatePatch:
    """The patch, when history can hold it.

    Args:
        patch: what the call asks for.
        longest: which arguments to shorten.

    Raises:
        Refused: it is too long.
    """
    size = len(canonical_json(patch.plain()))
    if size > MAX_PATCH_BYTES:
        raise Refused(
            f"this takes {size} bytes; {MAX_PATCH_BYTES} is the most: shorten {longest}", kind="invalid_arguments"
        )
    return patch
