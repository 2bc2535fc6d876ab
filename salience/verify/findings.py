"""A finding names the rule, the place and what is wrong there; a report without findings is a session that holds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from salience.model.export import Fault
from salience.model.frozen import Frozen, Names, type_of_sequence


class Finding(Frozen):
    """One disagreement of the record with itself."""

    rule: str
    message: str
    seq: int | None = None


class Report(Frozen):
    """What a verification looked at and found."""

    session_id: str
    ok: bool
    events: int = 0
    runs: int = 0
    runs_from_history: int = 0
    runs_from_archive: int = 0
    runs_imported: int = 0
    import_faults: Annotated[tuple[Fault, ...], type_of_sequence] = Field(
        (), description="What is wrong with the file that the session was imported from; the import has told of it."
    )
    runs_not_retained: int = 0
    reset_runs: Names = Field((), description="Runs that Temporal made by reset: branches of the log.")
    bundles: int = 0
    bundles_not_comparable: int = 0
    compactions: int = 0
    erased: int = 0
    blobs: int = 0
    blobs_left_out: int = Field(0, description="Blobs that the imported file says it does not hold.")
    checked: Names = ()
    findings: Annotated[tuple[Finding, ...], type_of_sequence] = ()
