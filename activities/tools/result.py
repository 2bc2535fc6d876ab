"""A tool gives a result or refuses with words the model can act on; neither holds a time, an id or a duration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from salience.model.session import SessionConfig
from salience.model.state import StatePatch
from salience.model.tool import FailureKind, FileEffect, ToolSpec
from salience.store.blobs import BlobStore
from salience.store.sources import Sources
from salience.workspace.diff import Diff
from salience.workspace.paths import Workspace

Arguments = dict[str, Any]


class Refused(Exception):
    """The call failed in a way the model can act on: `text` says what was wrong and what to do instead."""

    def __init__(self, text: str, *, kind: FailureKind = "error") -> None:
        super().__init__(text)
        self.text = text
        self.kind: FailureKind = kind


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool gives.

    Args:
        output: the whole output; the model sees as much of it as its session allows.
        trailer: a line that is shown whole, after the output.
        whole: the evidence behind `output`, when that is a rendering which loses something.
        truncated: whether `output` already is less than there was.
    """

    output: bytes
    trailer: str = ""
    ok: bool = True
    kind: FailureKind | None = None
    exit_code: int | None = None
    effects: tuple[FileEffect, ...] = ()
    diff: Diff | None = None
    state_patch: StatePatch | None = None
    finish: bool = False
    ask: bool = False
    whole: bytes | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """Where one call runs.

    Args:
        workspace: what it may touch.
        config: the session's configuration, with the room that one result of this answer has.
        blobs: where contents are kept.
        sources: what the session's record names.
        session_id: the session.
        call_id: this call.
        tag: a file-name-safe name of this call, the same at every attempt.
        intent: what an earlier attempt recorded that it was about to make true.
        intend: records that before it is done.
        stop: set when the call should end early.
        progress: told how many bytes of output there are so far.
    """

    workspace: Workspace
    config: SessionConfig
    blobs: BlobStore
    sources: Sources
    session_id: str
    call_id: str
    tag: str
    intent: dict[str, Any] | None
    intend: Callable[[dict[str, Any]], Awaitable[None]]
    stop: asyncio.Event
    progress: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as it is offered, and what runs it. `run` raises `Refused` for what the model can mend."""

    spec: ToolSpec
    run: Callable[[Site, Arguments], Awaitable[Result]]
