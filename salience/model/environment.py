"""The environment of a context, recorded by content so that a past bundle can be rebuilt (spec CTX-1, CTX-5)."""

from __future__ import annotations

from typing import Annotated

from salience.model.frozen import Frozen, type_of_sequence


class InstructionFile(Frozen):
    """One project instruction file (AGENTS.md and its kin); its text lies in the blob `digest`."""

    path: str
    digest: str
    size_bytes: int
    truncated: bool = False


class Environment(Frozen):
    """Where the agent works."""

    cwd: str
    repo_root: str | None = None
    platform: str
    vcs_head: str | None = None
    instructions: Annotated[tuple[InstructionFile, ...], type_of_sequence] = ()
    tools_ref: str = ""
    """Blob with the tool contracts as they stood then: a later release may describe its tools in other words."""


class EarlierRun(Frozen):
    """One earlier run of the session, for the bounded digest that opens a resumed one."""

    run_id: str
    reason: str
    turns: int
    ended_at: str
    first_prompt: str = ""
    last_words: str = ""
