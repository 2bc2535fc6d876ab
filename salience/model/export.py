"""Every line of an export can be checked by itself, in its chain, and as part of an uncut file (spec EVT-7).

`docs/export-format.md` describes the format; `salience schema export` prints its JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from salience.model.event import Actor, Anchor, Causality, event_json_schema
from salience.model.frozen import Frozen, Names, type_of_sequence
from salience.model.session import SandboxMode

EXPORT_VERSION = 1
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
WhyOmitted = Literal["sensitive", "missing"]


class Workplace(Frozen):
    """Where an imported session works, in place of the folder that its recorded configuration names."""

    cwd: str = Field(min_length=1)


class Header(Frozen):
    """The first line of a section. A session that was imported and went on has one section more."""

    kind: Literal["header"] = "header"
    salience_export: Literal[1]
    session_id: str
    decoder_versions: Annotated[tuple[int, ...], type_of_sequence]
    base: Anchor = Field(description="The journal before the section's first event; seq 0 and no head at a beginning.")
    head: Anchor = Field(description="The journal at the section's last event.")
    blobs: Literal["included", "left_out"]
    continues: Digest | None = Field(
        default=None, description="Digest of all bytes before this line, which the session was imported from."
    )
    workplace: Workplace | None = Field(default=None, description="What that import was told of its folder.")


class Envelope(Frozen):
    """An event without its payload, as the journal hashed it."""

    schema_version: Literal[1]
    decoder_version: int
    event_id: str = Field(min_length=1)
    session_id: str
    run_id: str
    parent_event_id: str | None = None
    seq: int = Field(ge=1)
    timestamp: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
    type: str
    actor: Actor
    causality: Causality


class EventLine(Frozen):
    """One journal row. `hash` follows from `previous`, the metadata and the payload's digest alone."""

    kind: Literal["event"] = "event"
    metadata: dict[str, Any] = Field(description="The envelope; see Envelope.")
    payload: dict[str, Any] | None = None
    erased: Literal[True] | None = Field(default=None, description="The payload was erased; its digest still stands.")
    payload_digest: Digest
    previous: str = Field(pattern="^([0-9a-f]{64})?$", description="Hash of the event before; empty for the first.")
    hash: Digest


class BlobLine(Frozen):
    """A piece of a blob that a later event names; the pieces of one blob follow each other."""

    kind: Literal["blob"] = "blob"
    digest: Digest
    piece: int = Field(ge=0)
    last: bool
    data: str = Field(description="Base64 of at most 1 MiB.")


class OmittedLine(Frozen):
    """A blob that a later event names and the file does not hold."""

    kind: Literal["omitted"] = "omitted"
    digest: Digest
    why: WhyOmitted


class EndLine(Frozen):
    """The last line of a section: a file that does not end with one was cut."""

    kind: Literal["end"] = "end"
    lines: int = Field(description="Lines of the file before this one.")
    events: int = Field(description="Events of the section.")
    blobs: int = Field(description="Blobs of the section.")
    omitted: int = Field(description="Blobs that the section names and does not hold.")
    digest: Digest = Field(description="sha256 of all bytes of the file before this line.")


class Fault(Frozen):
    """What is wrong with a line of an export; everything that is not named was kept."""

    line: int
    message: str


class ImportManifest(Frozen):
    """What an import was made of: enough to make it again when every database is lost (spec EVT-2b)."""

    schema_version: Literal[1] = 1
    session_id: str
    run_id: str
    file_ref: Digest
    workplace: Workplace | None = None


class Imported(Frozen):
    """What an import did."""

    session_id: str
    file_ref: Digest
    status: Literal["imported", "already_imported", "same_session"]
    events: int
    blobs: int = 0
    left_out: bool = Field(default=False, description="The file was made without blobs: there is nothing to continue.")
    omitted: Names = Field(default=(), description="Digests of blobs that the file names and says it does not hold.")
    faults: Annotated[tuple[Fault, ...], type_of_sequence] = ()
    cwd: str | None = None
    model: str | None = None
    api_base: str | None = Field(
        default=None, description="The server that the session's words and the worker's key go to."
    )
    sandbox_mode: SandboxMode | None = None
    network: bool = False


class Exported(Frozen):
    """What an export wrote."""

    session_id: str
    events: int = 0
    blobs: int = 0
    size_bytes: int = 0
    sensitive: Names = ()
    missing: Names = Field(default=(), description="Blobs that the store has not, or whose bytes do not match.")


def export_json_schema() -> dict[str, Any]:
    """JSON Schema of one line of an export: one branch a kind, with the envelope and the payloads among the definitions."""
    definitions: dict[str, Any] = {}
    branches: list[dict[str, Any]] = []
    for model in (Header, EventLine, BlobLine, OmittedLine, EndLine, Envelope):
        schema = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(schema.pop("$defs", {}))
        definitions[model.__name__] = schema
        if model is not Envelope:
            branches.append({"$ref": f"#/$defs/{model.__name__}"})
    event = event_json_schema()
    definitions = {**event.pop("$defs"), **definitions}
    line = definitions["EventLine"]["properties"]
    line["metadata"] = {"$ref": "#/$defs/Envelope"}
    return {
        "title": "Export",
        "description": "One line of a session's export.",
        "$defs": definitions,
        "oneOf": branches,
    }
