"""The public types as JSON Schema, made from the models themselves (spec ONT-1 to ONT-10)."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salience.cli.options import Json
from salience.cli.output import json_out, say, table
from salience.errors import NotFound

if TYPE_CHECKING:
    from pydantic import BaseModel


def schema(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a type.", show_default=False)] = None,
    json_: Json = False,
) -> None:
    """Print the JSON Schema of a public type, or list the types.

    Event has one branch for each event type; an event type's own name gives the schema of its payload. `export` gives the
    schema of a line of an export.
    """
    if name is None:
        rows = [(known, _line(model)) for known, model in types().items()]
        rows.append(("export", "One line of a session's export."))
        if json_:
            json_out([{"name": known, "description": line} for known, line in rows])
        else:
            table(("NAME", "WHAT IT IS"), rows)
        return
    found = schema_of(name)
    if json_:
        json_out(found)
    else:
        import json

        say(json.dumps(found, indent=2, ensure_ascii=False))


def types() -> dict[str, type[BaseModel]]:
    """The public types by name."""
    from salience.model import artifact, bundle, calls, environment, message, session, state, stats, tool
    from salience.model.event import Event

    public: tuple[type[BaseModel], ...] = (
        session.Session, session.SessionNode, session.SessionConfig, session.ModelSettings, session.ContextConfig,
        session.PermissionConfig, session.Limits, Event, message.Message, message.ModelResponse,
        message.CompiledMessage, state.State, state.StatePatch, stats.Stats, artifact.Artifact, bundle.ContextBundle,
        bundle.BundleSummary, bundle.BundleManifest, bundle.Segment, bundle.Excluded, environment.Environment,
        tool.ToolSpec, tool.ToolOutcome, calls.SessionStart, calls.SessionResult, calls.Prompt, calls.Receipt,
    )  # fmt: skip
    return {model.__name__: model for model in public}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a type or an event's payload.

    Raises:
        NotFound: there is no such type.
    """
    from salience.model.event import PAYLOADS, event_json_schema
    from salience.model.export import export_json_schema

    known: dict[str, Any] = {**PAYLOADS, **types()}
    if name == "Event":
        found = event_json_schema()
    elif name == "export":
        found = export_json_schema()
    elif name in known:
        found = known[name].model_json_schema()
    else:
        near = get_close_matches(name, [*known, "export"], n=1)
        raise NotFound(f"no type {name!r}", mend=f"perhaps {near[0]}" if near else "salience schema")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().split("\n")[0]
