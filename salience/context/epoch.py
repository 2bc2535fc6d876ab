"""Within an epoch a prefix only grows: what was compiled is not hashed, counted or rendered again (spec CTX-7)."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field

from salience.context.eviction import Kept
from salience.context.inputs import Basis, Fingerprint
from salience.context.segments import Part
from salience.context.tokens import Tokenizer
from salience.model.bundle import EpochReason, Masks
from salience.model.frozen import Frozen

LARGEST = 20


class EpochState(Frozen):
    """What a cold process must know of an epoch to go on with it, as of its latest stored bundle."""

    number: int
    reason: EpochReason
    fingerprint: Fingerprint
    masks: Masks = Field(default_factory=lambda: Masks())
    entries: int = Field(default=0, description="Transcript entries the latest bundle had before it.")
    bundle_id: str = ""


def changed(before: EpochState | None, now: Fingerprint) -> EpochReason | None:
    """Why a new epoch must start, or None; the most telling reason when there are several."""
    if before is None:
        return "start"
    was = before.fingerprint
    if was.checkpoint != now.checkpoint:
        return "compaction" if now.checkpoint_number > was.checkpoint_number else "rollback"
    if was.model != now.model:
        return "model_changed"
    if was.tools != now.tools:
        return "tools_changed"
    if was.instructions != now.instructions:
        return "instructions_changed"
    return "resume" if was.earlier_runs != now.earlier_runs else None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Token totals of a prefix."""

    total: int
    by_section: dict[str, int]


class Epoch:
    """The compiled prefix of the running epoch, in the memory of one process.

    Attributes:
        state: as of the latest build; small and serialisable.
        basis: what the head was made of.
        tokenizer: what the parts were counted with.
        head: parts before the transcript.
        parts: parts of the transcript, in order.
        seen: transcript entries taken in, left-out ones included.
        masked: parts that are masked.
    """

    def __init__(self, state: EpochState, basis: Basis, tokenizer: Tokenizer, head: Sequence[Part]) -> None:
        self.state = state
        self.basis = basis
        self.tokenizer = tokenizer
        self.head = list(head)
        self.parts: list[Part] = []
        self.seen = 0
        self.masked = 0
        self._last_message = ""
        self._last_response = -1
        self._prompts: dict[str, int] = {}
        self._hash = hashlib.sha256()
        self._tokens = 0
        self._by_section: dict[str, int] = {}
        self._largest: list[tuple[int, str]] = []
        for part in head:
            self._count(part)

    def __len__(self) -> int:
        """Segments of the prefix."""
        return len(self.head) + len(self.parts)

    def extend(self, parts: Iterable[Part]) -> None:
        """Append parts of the transcript."""
        for part in parts:
            self.parts.append(part)
            self.masked += part.segment.masked
            if part.entry is not None:
                if part.entry.kind == "response":
                    self._last_response = part.position
                elif part.entry.kind == "prompt":
                    self._prompts[part.entry.message_id] = part.position
            self._count(part)

    def take_in(self, seen: int, last_message: str) -> None:
        """Note how much of the transcript the prefix covers."""
        self.seen = seen
        self._last_message = last_message

    def reduced(self, state: EpochState, parts: Iterable[Part]) -> Epoch:
        """The epoch that starts with the same head and fewer or smaller parts."""
        new = Epoch(state, self.basis, self.tokenizer, self.head)
        new.extend(parts)
        new.take_in(self.seen, self._last_message)
        return new

    def covers(self, last_message: str) -> bool:
        """Whether this message is the last one taken in: a transcript that is another one shows here."""
        return self._last_message == last_message

    def kept(self, current_request: str) -> Kept:
        """What of the transcript may not be evicted."""
        return Kept(unseen_from=self._last_response, current=self._prompts.get(current_request, -1))

    @property
    def prefix_hash(self) -> str:
        """Running sha256 over the identities of all parts."""
        return self._hash.hexdigest()

    def sizes(self, tail: Iterable[Part]) -> Sizes:
        """Tokens of the prefix with a tail."""
        by_section = dict(self._by_section)
        total = self._tokens
        for part in tail:
            total += part.tokens
            by_section[part.segment.section] = by_section.get(part.segment.section, 0) + part.tokens
        return Sizes(total, by_section)

    def largest(self, tail: Iterable[Part]) -> dict[str, int]:
        """The largest segments of the prefix with a tail, by segment id, largest first."""
        sized = [*self._largest, *((part.tokens, part.segment.segment_id) for part in tail)]
        return {name: tokens for tokens, name in heapq.nlargest(LARGEST, sized)}

    def _count(self, part: Part) -> None:
        self._hash.update(part.identity)
        self._tokens += part.tokens
        section = part.segment.section
        self._by_section[section] = self._by_section.get(section, 0) + part.tokens
        # Pairs have one order, so the largest are the same however the prefix came to be.
        pair = (part.tokens, part.segment.segment_id)
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, pair)
        else:
            heapq.heappushpop(self._largest, pair)
