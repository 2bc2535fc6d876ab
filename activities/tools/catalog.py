"""Every tool there is, by name; a session offers some of them or all, always in the same order."""

from __future__ import annotations

from collections.abc import Sequence

from activities.tools import (
    ask_user,
    edit_file,
    finish,
    list_files,
    note_fact,
    read_artifact,
    read_file,
    record_decision,
    run_command,
    search,
    update_plan,
    write_file,
)
from activities.tools.result import Tool
from salience.errors import UsageError
from salience.model.tool import ToolClass, ToolSpec

CATALOG: dict[str, Tool] = {
    module.SPEC.name: module.TOOL
    for module in (
        ask_user,
        edit_file,
        finish,
        list_files,
        note_fact,
        read_artifact,
        read_file,
        record_decision,
        run_command,
        search,
        update_plan,
        write_file,
    )
}


def offered(names: Sequence[str]) -> tuple[str, ...]:
    """The names a session offers, sorted; none named means all.

    Raises:
        UsageError: a name is no tool.
    """
    if unknown := sorted(set(names) - CATALOG.keys()):
        raise UsageError(f"no such tool: {', '.join(unknown)}", mend=f"the tools are {', '.join(sorted(CATALOG))}")
    return tuple(sorted(set(names) or CATALOG))


def specs(names: Sequence[str]) -> tuple[ToolSpec, ...]:
    """What a model is told of the tools a session offers, by name: an order that moved would cost the prompt cache."""
    return tuple(CATALOG[name].spec for name in offered(names))


def classes(names: Sequence[str]) -> dict[str, ToolClass]:
    """The effect class of each tool a session offers."""
    return {name: CATALOG[name].spec.tool_class for name in offered(names)}
