"""Verification as a command: what was checked, what was found, and where (spec EVT-4, INV)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from salience.cli.connection import connected
from salience.cli.options import Json, SessionId
from salience.cli.output import json_out, say, tell
from salience.errors import VerificationFailed

if TYPE_CHECKING:
    from salience.client import Salience
    from salience.verify.findings import Report


def verify(
    session: SessionId,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="First re-create the journal from history or archives; rows that are there stay."
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Check a session's record against its raw log: chain, history, every bundle, the invariants.

    Ends with 4 when something does not hold; the finding names the place.
    """

    async def work(client: Salience) -> Report:
        from activities.verification import Verification
        from salience.store.history import Histories

        verification = Verification(client.postgres, client.journal, client.blobs, Histories(client.temporal))
        if rebuild:
            rows = await verification.rebuild(session)
            tell(f"{rows} rows re-created or found identical")
        return await verification.verify(session)

    report = connected(work)
    if json_:
        json_out(report)
    else:
        _tell(report)
    if not report.ok:
        first = report.findings[0]
        place = f"at seq {first.seq}: " if first.seq is not None else ""
        raise VerificationFailed(
            f"{session} does not verify: {place}{first.message} ({first.rule})",
            mend="restore from a backup, or salience verify --rebuild once the changed rows are gone",
        )


def _tell(report: Report) -> None:
    sources = [
        f"{count} from {where}"
        for count, where in (
            (report.runs_from_history, "Temporal's history"),
            (report.runs_from_archive, "archives"),
            (report.runs_imported, "the imported file"),
            (report.runs_not_retained, "the journal alone (neither history nor archive is retained)"),
        )
        if count
    ]
    say(f"{report.events} events in one unbroken chain" if report.ok else f"{report.events} events")
    say(f"{report.runs} runs decoded again: {', '.join(sources) or 'none'}")
    say(f"{report.bundles} contexts compiled again, {report.blobs} blobs read and hashed")
    if report.compactions:
        say(f"{report.compactions} compactions done again, their records held against the messages they stand for")
    if report.bundles_not_comparable:
        why = "of another builder version, or of texts that are not here"
        say(f"{report.bundles_not_comparable} contexts {why}: not comparable")
    if report.blobs_left_out:
        say(f"{report.blobs_left_out} blobs that the imported file says it does not hold")
    for fault in report.import_faults:
        say(f"the imported file was not as it was written, line {fault.line}: {fault.message}", "bad")
    if report.erased:
        say(f"{report.erased} payloads were erased; their digests still stand")
    for run in report.reset_runs:
        say(f"run {run} was made by a reset: a branch of the log")
    for finding in report.findings:
        say(f"{finding.rule}{f' at seq {finding.seq}' if finding.seq is not None else ''}: {finding.message}", "bad")
    if report.ok:
        say(f"verified: {', '.join(report.checked)}")
