"""An artifact is evidence too large for a prompt, kept by content hash (spec ONT-7, EVT-6)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from salience.model.frozen import Frozen, Names

ArtifactKind = Literal["file", "diff", "tool_output", "command_log", "screenshot", "dataset", "url_snapshot"]


class AccessPolicy(Frozen):
    """Who may see it."""

    sensitive: bool = False
    allowed_scopes: Names = ()


class Artifact(Frozen):
    """One stored object. `uri` is `blob:SHA256`; the artifact id is the session-wide name of that content."""

    artifact_id: str
    session_id: str
    kind: ArtifactKind
    uri: str
    summary: str = ""
    content_hash: str
    size_bytes: int = 0
    source_event_id: str
    created_at: str
    access_policy: AccessPolicy = Field(default_factory=lambda: AccessPolicy())
