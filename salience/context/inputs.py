"""Everything a bundle is a function of stands in one value (spec CTX-1, CTX-5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from salience.model.canonical import digest_of
from salience.model.compaction import Checkpoint
from salience.model.environment import EarlierRun, Environment, InstructionFile
from salience.model.frozen import Frozen
from salience.model.session import PermissionConfig, SessionConfig
from salience.model.state import State
from salience.model.tool import ToolSpec
from salience.projection.gauge import Gauge
from salience.projection.stretch import Stretch
from salience.projection.transcript import Entry

BUILDER_VERSION = "builder-2"
"""Raised whenever the same inputs would compile to other bytes; an older bundle is then not comparable."""


@dataclass(frozen=True, slots=True)
class BuildInput:
    """The inputs of one build.

    `entries` is the whole sealed transcript in position order, which only grows between builds; those that `checkpoint`
    summarises are not read. `text_of` gives the bytes of a digest and raises KeyError for one that `refs_needed` did not
    name. `gauge` says what the provider's answers have taught of sizes.
    """

    session_id: str
    turn: int
    call_index: int
    source_event_id: str
    source_seq: int
    config: SessionConfig
    environment: Environment
    environment_ref: str
    tools: tuple[ToolSpec, ...]
    state: State
    earlier_runs: tuple[EarlierRun, ...]
    entries: Stretch[Entry]
    current_request: str
    checkpoint: Checkpoint | None
    gauge: Gauge
    text_of: Callable[[str], bytes]


class Basis(NamedTuple):
    """What the head of a prefix is made of; the VCS head is not in it, because every commit would move the prefix."""

    model: str
    tools: tuple[ToolSpec, ...]
    instructions: tuple[InstructionFile, ...]
    place: tuple[str, str | None, str]
    permissions: PermissionConfig
    hard_constraints: tuple[str, ...]
    earlier_runs: tuple[EarlierRun, ...]
    checkpoint: Checkpoint | None


class Fingerprint(Frozen):
    """The basis by digest, in the parts whose change has a name of its own."""

    model: str
    tools: str
    instructions: str
    earlier_runs: str
    checkpoint: str = ""
    checkpoint_number: int = 0


def basis_of(inputs: BuildInput) -> Basis:
    """The part of the inputs that stands before the transcript."""
    environment = inputs.environment
    return Basis(
        model=inputs.config.model_settings.model,
        tools=inputs.tools,
        instructions=environment.instructions,
        place=(environment.cwd, environment.repo_root, environment.platform),
        permissions=inputs.config.permission_config,
        hard_constraints=inputs.config.hard_constraints,
        earlier_runs=inputs.earlier_runs,
        checkpoint=inputs.checkpoint,
    )


def fingerprint_of(basis: Basis) -> Fingerprint:
    """The digests of a basis, sixteen characters each: they are compared, not looked up."""
    rules = [
        BUILDER_VERSION,
        basis.place,
        basis.permissions.plain(),
        basis.hard_constraints,
        [file.plain() for file in basis.instructions],
    ]
    return Fingerprint(
        model=basis.model,
        tools=digest_of(sorted((tool.plain() for tool in basis.tools), key=lambda tool: tool["name"]))[:16],
        instructions=digest_of(rules)[:16],
        earlier_runs=digest_of([run.plain() for run in basis.earlier_runs])[:16],
        checkpoint=basis.checkpoint.compaction_id if basis.checkpoint else "",
        checkpoint_number=basis.checkpoint.number if basis.checkpoint else 0,
    )
