"""A run begins where the record of the runs before it ends (spec LOOP-2b, EVT-5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.archive import ArchiveActivities
from activities.projection import Projector, anchor_of
from activities.tools.catalog import CATALOG, classes
from salience.errors import NotFound
from salience.model import calls
from salience.model.session import Limits, ModelSettings, SessionConfig
from salience.projection.projection import Projection
from salience.projection.transcript import Entry
from salience.settings import Settings
from salience.store.journal import Journal
from salience.telemetry.failpoints import failpoint

CARRIED_RECEIPTS = 500


class SessionActivities:
    """Opens runs, and brings the journal up to date where no context build follows."""

    def __init__(self, settings: Settings, journal: Journal, projector: Projector, archives: ArchiveActivities) -> None:
        self._settings = settings
        self._journal = journal
        self._projector = projector
        self._archives = archives

    @activity.defn(name=calls.OPEN_RUN)
    async def open_run(self, asked: calls.OpenRun) -> calls.OpenedRun:
        """Finish the record of earlier runs, archive them, and say what this run works with.

        Raises:
            ApplicationError: `invalid_session` for a configuration that cannot work, `model_bad_request` for none at all.
        """
        info = activity.info()
        failpoint("context.before_project")
        projection = await self._projector.project(
            asked.session_id, info.workflow_run_id or "", upto_activity=info.activity_id
        )
        failpoint("context.after_project")
        await self._archive_earlier(asked.session_id, info.workflow_run_id or "", projection)
        known = projection.workplace.config
        config = known or self._resolve(asked)
        _check_tools(config)
        return calls.OpenedRun(
            anchor=anchor_of(projection),
            config=None if known else config,
            carry=_carry(projection, await self._journal.prompts(asked.session_id))
            if projection.cursor.generation > 1
            else None,
            limits=config.limits,
            model=config.model_settings.model,
            tool_classes=classes(config.tools),
        )

    @activity.defn(name=calls.PROJECT)
    async def project(self, asked: calls.Project) -> calls.Projected:
        """Bring the journal up to this activity."""
        info = activity.info()
        projection = await self._projector.project(
            asked.session_id, info.workflow_run_id or "", upto_activity=info.activity_id
        )
        return calls.Projected(anchor=anchor_of(projection))

    async def _archive_earlier(self, session_id: str, run_id: str, projection: Projection) -> None:
        for run in await self._journal.runs(session_id):
            if run.run_id == run_id or run.archive_ref is not None:
                continue
            try:
                await self._archives.archive(session_id, run, anchor_of(projection))
            except NotFound:
                activity.logger.warning("run %s of %s was gone before it could be archived", run.run_id, session_id)

    def _resolve(self, asked: calls.OpenRun) -> SessionConfig:
        """The configuration of a session whose client left it to us."""
        model = asked.model or self._settings.model
        if not model:
            raise ApplicationError(
                "no model: name one in the start input or set SALIENCE_MODEL for the worker",
                type="model_bad_request",
                non_retryable=True,
            )
        cwd = asked.cwd
        if cwd is None:
            own = self._settings.home / "workspaces" / asked.session_id.replace("/", "_")[:100]
            own.mkdir(parents=True, exist_ok=True)
            cwd = str(own)
        try:
            return SessionConfig(cwd=cwd, model_settings=ModelSettings(model=model), limits=Limits())
        except ValidationError as error:
            problem = "; ".join(str(e["msg"]) for e in error.errors())
            raise ApplicationError(problem, type="invalid_session", non_retryable=True) from None


def _check_tools(config: SessionConfig) -> None:
    unknown = [name for name in config.tools if name not in CATALOG]
    if unknown:
        raise ApplicationError(
            f"unknown tools: {', '.join(unknown)}; there are {', '.join(sorted(CATALOG))}",
            type="invalid_session",
            non_retryable=True,
        )
    if not Path(config.cwd).is_dir():
        raise ApplicationError(f"the workspace {config.cwd} does not exist", type="workspace_gone", non_retryable=True)


def _carry(projection: Projection, prompts: Sequence[Entry]) -> calls.SessionCarry:
    """What a run needs of the runs before it, from the record: the run before could not hand it over itself.

    What this run was sent already is in the record, too; the workflow acknowledges that itself.
    """
    place = projection.workplace
    run_id = projection.cursor.run_id
    delivered = [e.message_id for e in prompts if e.run_id != run_id]
    pending = [e.message_id for e in projection.transcript.pending if e.run_id != run_id]
    ids = [*delivered, *pending]
    receipts = tuple((message_id, number + 1) for number, message_id in enumerate(ids))[-CARRIED_RECEIPTS:]
    return calls.SessionCarry(
        turn=place.turn,
        model_calls=place.finished_model_calls,
        positions=len(ids),
        receipts=receipts,
        undelivered=len(pending),
        paused=False,
        plan=projection.state.plan if projection.state.plan.steps else None,
        tally=calls.Tally(
            model_failures=projection.stats.model_failures,
            input_tokens=projection.stats.tokens.input,
            output_tokens=projection.stats.tokens.output,
            tool_calls=projection.stats.tools.calls,
            tool_failures=projection.stats.tools.failed,
        ),
    )


__all__ = ["SessionActivities"]
