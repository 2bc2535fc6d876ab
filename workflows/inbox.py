"""Every input is acknowledged once and delivered once, also across continue-as-new (spec LOOP-2)."""

from __future__ import annotations

from collections import OrderedDict

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from salience.model.calls import Receipt

KEPT_RECEIPTS = 1_000
CARRIED_BYTES = 40_000
"""Receipts that go into the carry: with it the whole stays under 64 KiB even when ids have their full length."""


class Inbox:
    """Receipts by message id, and how much no context has been built with yet."""

    def __init__(self, receipts: tuple[tuple[str, int], ...] = (), positions: int = 0, undelivered: int = 0) -> None:
        self._receipts: OrderedDict[str, int] = OrderedDict(receipts)
        self.positions = positions
        self.undelivered = undelivered

    def admit(self, message_id: str) -> Receipt:
        """Acknowledge an input; one that was seen before gets its first receipt and is not counted again."""
        known = self._receipts.get(message_id)
        if known is not None:
            return Receipt(message_id=message_id, accepted="duplicate", position=known)
        self.positions += 1
        self.undelivered += 1
        self._receipts[message_id] = self.positions
        while len(self._receipts) > KEPT_RECEIPTS:
            self._receipts.popitem(last=False)
        return Receipt(message_id=message_id, accepted="queued", position=self.positions)

    def delivered(self) -> None:
        """All that was acknowledged so far is in the context that is being scheduled now."""
        self.undelivered = 0

    def carried(self) -> tuple[tuple[str, int], ...]:
        """The latest receipts that fit the carry, oldest first."""
        kept: list[tuple[str, int]] = []
        size = 0
        for message_id, position in reversed(self._receipts.items()):
            size += len(message_id.encode()) + 16
            if size > CARRIED_BYTES:
                break
            kept.append((message_id, position))
        return tuple(reversed(kept))
