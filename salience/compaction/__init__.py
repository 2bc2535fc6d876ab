"""Compaction: where a view may be cut, what stands for the rest, and whether that may be used (spec CMP)."""

from salience.compaction.checks import check
from salience.compaction.cut import Cut, cut_of
from salience.compaction.ladder import Compaction, Refusal, compact
from salience.compaction.record import POLICY, record_of
from salience.compaction.text import text_of_record

__all__ = ["POLICY", "Compaction", "Cut", "Refusal", "check", "compact", "cut_of", "record_of", "text_of_record"]
