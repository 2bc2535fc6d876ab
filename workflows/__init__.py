"""Deterministic orchestration only: what happens next, never how (style, floor 5)."""

from workflows.archive import ArchiveRun, ArchiveSweep
from workflows.session import AgentSession

WORKFLOWS = [AgentSession, ArchiveRun, ArchiveSweep]

__all__ = ["WORKFLOWS", "AgentSession", "ArchiveRun", "ArchiveSweep"]
