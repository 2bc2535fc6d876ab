"""Chance is seeded: what a run tries is decided by one number, which is printed and can be given again."""

from __future__ import annotations

import os
import random

FULL = os.environ.get("SALIENCE_CHAOS") == "full"
"""Whether everything is tried, as `make chaos` does; otherwise a seeded slice of it."""


def seed() -> int:
    """The seed of this run; one that was not given is drawn once, and handed on to the processes of the run."""
    return int(os.environ.setdefault("SALIENCE_CHAOS_SEED", str(random.SystemRandom().randrange(1_000_000))))


def chance(name: str) -> random.Random:
    """Draws that depend on the seed and on what they are for, and not on what else was drawn."""
    return random.Random(f"{seed()}:{name}")
