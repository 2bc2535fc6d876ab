"""The verbs of a session for Python programs: everything that acknowledges, answers or reads (spec PPL-2, LOOP-2)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from salience.compaction import Compaction, Refusal
from salience.errors import BackendUnavailable, InputTooLarge, NotFound, SalienceError, UsageError
from salience.local import resolve
from salience.log import prompt as prompts
from salience.log.decode import Cursor, begin_run, decode
from salience.model import calls, text
from salience.model.artifact import Artifact
from salience.model.bundle import ContextBundle
from salience.model.canonical import digest
from salience.model.event import Event, UserPromptSubmitted
from salience.model.export import Imported, Workplace
from salience.model.frozen import Frozen
from salience.model.session import ContextConfig, Limits, ModelSettings, Session, SessionConfig
from salience.model.state import State
from salience.model.stats import Stats
from salience.projection.projection import Standing
from salience.settings import Settings
from salience.store.blobs import BlobStore
from salience.store.bundles import Bundles
from salience.store.configured import blobs_of
from salience.store.exports import Export
from salience.store.history import Histories
from salience.store.journal import Journal
from salience.store.postgres import Postgres
from salience.store.record import Record
from salience.wire import connect

RPC_TIMEOUT = timedelta(seconds=30)
_Adjusted = TypeVar("_Adjusted", calls.Compacted, calls.RolledBack)


class Salience:
    """A connection to a deployment. Use `Salience.connect()` as an async context manager.

    Args:
        settings: resolved settings.
        temporal: a client made by `salience.wire.connect`.
    """

    def __init__(self, settings: Settings, temporal: Client) -> None:
        self.settings = settings
        self.temporal = temporal
        self.postgres = Postgres(settings.postgres_dsn, max_size=4)
        self.blobs: BlobStore = blobs_of(settings)
        self.journal = Journal(self.postgres, settings.tenant)
        self.bundles = Bundles(self.postgres, settings.tenant)
        self.record = Record(self.journal, self.bundles, self.blobs)

    @classmethod
    async def connect(cls, settings: Settings | None = None) -> Salience:
        """Connect to the deployment that the settings name, the embedded stack by default.

        Raises:
            StackNotRunning: nothing is configured and the embedded stack is not up.
            BackendUnavailable: Temporal does not answer.
        """
        resolved = resolve(settings or Settings())
        return cls(resolved, await connect(resolved))

    async def __aenter__(self) -> Salience:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close_connection()

    async def close_connection(self) -> None:
        """Give the connections back; the sessions go on."""
        await self.postgres.close()

    # --- starting and speaking ----------------------------------------------------------------------------------------

    async def start(
        self, config: SessionConfig, task: str | None = None, *, session_id: str | None = None, message_id: str = ""
    ) -> str:
        """Start a session; returns its id when the task is acknowledged.

        Idempotent by `session_id`: starting one that exists gives the task to it, which takes the same task once and
        another as further input; one that has ended goes on.

        Raises:
            InputTooLarge: the task is over 50 MB.
            UsageError: the session id is not usable.
            BackendUnavailable: Temporal did not answer.
        """
        session_id = session_id or new_session_id()
        check_session_id(session_id)
        prompt = await self._prompt(task, message_id or f"task-{session_id}") if task is not None else None
        start = _started(task=prompt, config=config)
        try:
            await self.temporal.start_workflow(
                calls.WORKFLOW_TYPE,
                start,
                id=session_id,
                task_queue=self.settings.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                rpc_timeout=RPC_TIMEOUT,
            )
        except WorkflowAlreadyStartedError:
            if task is not None:
                await self.give_task(session_id, task, message_id=message_id)
        except RPCError as error:
            raise _unavailable(error) from error
        return session_id

    async def say(
        self,
        session_id: str,
        words: str,
        *,
        message_id: str = "",
        model_settings: ModelSettings | None = None,
        limits: Limits | None = None,
        context_config: ContextConfig | None = None,
    ) -> calls.Receipt:
        """Give a session input; one that has ended goes on in a new run.

        Args:
            message_id: makes the input idempotent; the same id is acknowledged again and delivered once.
            model_settings: the model of the next run, when the session has ended.
            limits: the limits of the next run, when the session has ended.
            context_config: window and budget from the next run on, when the session has ended.

        Raises:
            NotFound: there is no such session.
            InputTooLarge: over 50 MB.
        """
        await self._must_exist(session_id)
        await self._refuse_changes(session_id, model_settings, limits, context_config)
        prompt = await self._prompt(words, message_id or f"msg-{uuid.uuid4().hex}")
        resume = _started(resume=True, model_settings=model_settings, limits=limits, context_config=context_config)
        if message_id:
            return await self._submit_once(session_id, prompt, resume)
        return await self._submit(session_id, prompt, resume=resume)

    async def give_task(self, session_id: str, task: str, *, message_id: str = "") -> calls.Receipt:
        """Give a session that exists a task: the same one is taken once, another is further input. Raises as `say`."""
        prompt = await self._prompt(task, message_id or f"task-{session_id}")
        if not message_id and not await self._began_with(session_id, prompt):
            prompt = prompt.model_copy(update={"message_id": f"task-{digest(prompt.text_ref or prompt.text)[:32]}"})
        return await self._submit_once(session_id, prompt, _started(resume=True))

    async def resume(
        self,
        session_id: str,
        *,
        model_settings: ModelSettings | None = None,
        limits: Limits | None = None,
        context_config: ContextConfig | None = None,
    ) -> str:
        """Unpause a running session, or start the next run of one that has ended. Returns `active` or `started`."""
        await self._must_exist(session_id)
        await self._refuse_changes(session_id, model_settings, limits, context_config)
        try:
            return await self._update(session_id, "resume")
        except NotFound:
            start = _started(resume=True, model_settings=model_settings, limits=limits, context_config=context_config)
            await self._start_run(session_id, start)
            return "started"

    async def _refuse_changes(self, session_id: str, *changes: Frozen | None) -> None:
        """A running session keeps what it runs with; asking for something else must not be ignored."""
        if any(changes) and await self.running(session_id):
            raise UsageError(
                f"session {session_id} is running; its model, window and limits change with its next run",
                mend=f"say it without them, or salience close {session_id} first",
            )

    async def interrupt(self, session_id: str, reason: str = "") -> str:
        """Stop what a session is doing; it stays open for input. Returns what was running."""
        await self._must_exist(session_id)
        return await self._update(session_id, "interrupt", reason)

    async def pause(self, session_id: str) -> str:
        """Start no further model call or tool until `resume`."""
        await self._must_exist(session_id)
        return await self._update(session_id, "pause")

    async def close(self, session_id: str) -> str:
        """End a session; it stays readable and resumable."""
        await self._must_exist(session_id)
        try:
            return await self._update(session_id, "close")
        except NotFound:
            return "closed"

    async def compact(self, session_id: str, *, focus: str = "", window_tokens: int | None = None) -> calls.Compacted:
        """Compact a session's view between two turns; an ended session gets a run of its own for it (spec EVT-2b).

        Args:
            focus: what the summary shall pay attention to.
            window_tokens: the window to compact for, where it is not the session's.

        Returns:
            The new checkpoint, or why there is none.
        """
        asked = calls.CompactRequest(focus=text.mend(focus), window_tokens=window_tokens)
        return await self._adjust(session_id, "compact", asked, calls.Compacted)

    async def rollback(self, session_id: str, *, to: int | None = None) -> calls.RolledBack:
        """Deactivate the checkpoint that serves (spec CMP-2).

        Args:
            to: number of the checkpoint that shall serve, 0 for the full history; None: as far back as fits.

        Returns:
            What serves now, or why nothing was changed.
        """
        return await self._adjust(session_id, "rollback", calls.RollbackRequest(to=to), calls.RolledBack)

    async def plan_compaction(
        self, session_id: str, *, focus: str = "", window_tokens: int | None = None
    ) -> Compaction | Refusal:
        """What `compact` would do now, without doing it.

        Raises:
            NotFound: there is no such session.
        """
        from activities.compaction import Compactions

        projection = await self.journal.load(session_id)
        if projection is None:
            raise NotFound(f"no session {session_id!r}", mend="salience list")
        compactions = Compactions(self.journal, self.blobs)
        return await compactions.plan(
            session_id, projection, trigger="manual", focus=text.mend(focus), window=window_tokens
        )

    async def _adjust(self, session_id: str, name: str, asked: Any, result: type[_Adjusted]) -> _Adjusted:
        """Have a view changed: by the run there is, or by one that does nothing else."""
        await self._must_exist(session_id)
        operation = WithStartWorkflowOperation(
            calls.WORKFLOW_TYPE,
            _started(resume=True, adjust=True),
            id=session_id,
            task_queue=self.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        try:
            return await self.temporal.execute_update_with_start_workflow(
                name, asked, start_workflow_operation=operation, result_type=result
            )
        except WorkflowUpdateFailedError as error:
            raise SalienceError(str(error.cause)) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise _unanswered() from error
        except RPCError as error:
            raise _unavailable(error) from error

    # --- coming and going ---------------------------------------------------------------------------------------------

    def export(self, session_id: str, *, blobs: bool = True) -> Export:
        """A session as a file: iterate over its `lines()`; `outcome` tells afterwards what was written (spec EVT-7).

        Args:
            blobs: without them the file tells what happened, and cannot be continued.
        """
        return Export(self.journal, self.blobs, session_id, with_blobs=blobs)

    async def import_file(self, path: Path, *, session_id: str | None = None, cwd: Path | None = None) -> Imported:
        """Make a session of an export; importing the same file again changes nothing (spec EVT-7).

        Args:
            path: a file that `export` wrote, here or elsewhere, whole or not: `faults` of the result names what is amiss.
            session_id: the session to make; None: the one that was exported.
            cwd: the folder it shall work in; None: the one it worked in.

        Raises:
            NotFound: there is no such file or folder.
            UsageError: it is no export, or there is another session of that id.
        """
        from activities.importing import Importing, offered
        from activities.verification import Verification

        file = await asyncio.to_thread(offered, path)
        session_id = session_id or file.session_id
        check_session_id(session_id)
        workplace = None
        if cwd is not None:
            if not cwd.is_dir():
                raise NotFound(f"the folder {cwd} does not exist", mend="make it, or give another --cwd")
            workplace = Workplace(cwd=str(cwd.absolute()))
        if await self.journal.position(session_id) is None and await self._has_run(session_id):
            # They would be taken for what happened after the import, when the session goes on.
            raise UsageError(
                f"Temporal holds runs of {session_id} that the journal does not have",
                mend=f"give --session NEW, or have the session made of them: salience verify {session_id} --rebuild",
            )
        verification = Verification(self.postgres, self.journal, self.blobs, None)
        return await Importing(self.postgres, self.journal, self.blobs, verification).take(file, session_id, workplace)

    async def result(self, session_id: str) -> calls.SessionResult:
        """Wait for the running or latest run to end, through continue-as-new.

        Raises:
            NotFound: there is no such workflow within Temporal's retention.
        """
        handle = self.temporal.get_workflow_handle(session_id, result_type=calls.SessionResult)
        try:
            return await handle.result()
        except RPCError as error:
            raise _not_found_or_unavailable(error, session_id) from error

    # --- reading ------------------------------------------------------------------------------------------------------

    async def list(self, *, limit: int = 100, status: str | None = None) -> list[dict[str, Any]]:
        """Sessions by latest change, as rows of `salience.store.journal.Journal.sessions`."""
        return await self.journal.sessions(limit=limit, status=status)

    async def session(self, session_id: str) -> Session:
        """The session as the journal knows it; works for running and ended ones alike."""
        return session_of(session_id, await self.journal.standing(session_id))

    async def state(self, session_id: str, *, at: str | None = None) -> State:
        """The state after an event (an id, or a seq as text); the latest in the store by default (spec PRJ-4)."""
        return (await self.record.at(session_id, at) if at is not None else await self.journal.latest(session_id)).state

    async def context(self, session_id: str, *, at: str | None = None, messages: bool = False) -> ContextBundle:
        """What a model saw, explained; see `salience.store.record.Record.context`."""
        return await self.record.context(session_id, at, messages=messages)

    async def compactions(self, session_id: str) -> Sequence[Event]:
        """The events that tell of compactions and rollbacks, in order."""
        return await self.journal.compactions(session_id)

    async def artifacts(self, session_id: str) -> Sequence[Artifact]:
        """What the session produced and kept, in order of appearance; bytes are read with `blobs.get`."""
        return await self.journal.artifacts(session_id)

    async def stats(self, session_id: str) -> Stats:
        """The latest stats in the store."""
        return (await self.journal.standing(session_id)).stats

    def events(self, session_id: str, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """The journal's events after a seq."""
        return self.journal.events(session_id, after=after, upto=upto)

    async def query(self, session_id: str, name: str) -> dict[str, Any] | None:
        """Ask the workflow itself; None when no worker answers, so that the store is the answer."""
        try:
            return await self._handle(session_id).query(name, rpc_timeout=timedelta(seconds=5))
        except (TimeoutError, RPCError):
            return None

    async def running(self, session_id: str) -> bool:
        """Whether a run of the session is open right now."""
        description = await self._latest_run(session_id)
        return description is not None and description.close_time is None

    async def _has_run(self, session_id: str) -> bool:
        return await self._latest_run(session_id) is not None

    async def _latest_run(self, session_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._handle(session_id).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise _unavailable(error) from error

    # --- inside -------------------------------------------------------------------------------------------------------

    def _handle(self, session_id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(session_id)

    async def _prompt(self, words: str, message_id: str) -> calls.Prompt:
        """Mend and spill before anything is sent (design §8)."""
        size = len(words.encode("utf-8", "surrogatepass"))
        if size > calls.MAX_PROMPT_BYTES:
            raise InputTooLarge(
                f"the message has {size // 1_000_000} MB, the limit is {calls.MAX_PROMPT_BYTES // 1_048_576} MB",
                mend="put it into a file of the workspace and name the file",
            )
        kept = prompts.keep(calls.Prompt.model_construct(text=words, message_id=text.mend(message_id)[:200]))
        for data in kept.blobs.values():
            await self.blobs.put(data)
        if prompts.is_empty(kept.prompt):
            raise UsageError("the message is empty")
        return kept.prompt

    async def _began_with(self, session_id: str, prompt: calls.Prompt) -> bool:
        """Whether the session was started with this very task; history knows it before the journal does."""
        events = [event async for event in self.journal.events(session_id, upto=4)]
        if not events:
            description = await self._handle(session_id).describe(rpc_timeout=RPC_TIMEOUT)
            run_id = description.run_id or ""
            history = await Histories(self.temporal).whole(session_id, run_id)
            events = decode(history, begin_run(Cursor(session_id=session_id), run_id))[0].events
        told = (prompt.message_id, prompt.text, prompt.text_ref)
        return any(
            isinstance(said, UserPromptSubmitted) and (said.message_id, said.text, said.text_ref) == told
            for said in (event.payload for event in events)
        )

    async def _submit_once(self, session_id: str, prompt: calls.Prompt, resume: calls.SessionStart) -> calls.Receipt:
        """Submit, but start no new run for an input that an ended one has had: it would have nothing to do."""
        if not await self.running(session_id):
            had = [e.message_id for e in await self.journal.transcript(session_id) if e.kind == "prompt"]
            if prompt.message_id in had:
                position = had.index(prompt.message_id) + 1
                return calls.Receipt(message_id=prompt.message_id, accepted="duplicate", position=position)
        return await self._submit(session_id, prompt, resume=resume)

    async def _submit(self, session_id: str, prompt: calls.Prompt, *, resume: calls.SessionStart) -> calls.Receipt:
        """Update a running session, or start its next run with the input: one request, whichever it is."""
        operation = WithStartWorkflowOperation(
            calls.WORKFLOW_TYPE,
            resume,
            id=session_id,
            task_queue=self.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        try:
            return await self.temporal.execute_update_with_start_workflow(
                "submit",
                prompt,
                start_workflow_operation=operation,
                id=f"{prompt.message_id}-{digest(prompt.text)[:8]}",
                result_type=calls.Receipt,
                rpc_timeout=RPC_TIMEOUT,
            )
        except WorkflowUpdateFailedError as error:
            raise SalienceError(str(error.cause)) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise _unanswered() from error
        except RPCError as error:
            raise _unavailable(error) from error

    async def _start_run(self, session_id: str, start: calls.SessionStart) -> None:
        try:
            await self.temporal.start_workflow(
                calls.WORKFLOW_TYPE,
                start,
                id=session_id,
                task_queue=self.settings.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                rpc_timeout=RPC_TIMEOUT,
            )
        except RPCError as error:
            raise _unavailable(error) from error

    async def _update(self, session_id: str, name: str, *values: Any) -> str:
        try:
            return await self._handle(session_id).execute_update(
                name, *values, result_type=str, rpc_timeout=RPC_TIMEOUT
            )
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.type == "AcceptedUpdateCompletedWorkflow":
                return name
            raise SalienceError(str(cause)) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise _unanswered() from error
        except RPCError as error:
            raise _not_found_or_unavailable(error, session_id) from error

    async def exists(self, session_id: str) -> bool:
        """Whether there is such a session, running or ended."""
        return await self.journal.position(session_id) is not None or await self.running(session_id)

    async def _must_exist(self, session_id: str) -> None:
        if not await self.exists(session_id):
            raise NotFound(f"no session {session_id!r}", mend="salience list")


def _started(**fields: Any) -> calls.SessionStart:
    """A start input with what this release gives every run."""
    return calls.SessionStart(max_history_events=calls.MAX_HISTORY_EVENTS, **fields)


def new_session_id() -> str:
    """An opaque, unused session id."""
    return f"s-{uuid.uuid4().hex[:12]}"


def check_session_id(session_id: str) -> None:
    """Refuse what Temporal or a file name could not carry.

    Raises:
        UsageError: empty, over 200 bytes, with control characters, or with a slash (archives are named by it).
    """
    size = len(session_id.encode("utf-8", "surrogatepass"))
    if not 0 < size <= 200 or "/" in session_id or not session_id.isprintable():
        raise UsageError(
            f"session id {session_id[:50]!r} is not usable", mend="use 1 to 200 bytes, printable and without a slash"
        )


def session_of(session_id: str, saved: Standing) -> Session:
    """The session as seen from outside, from its projection."""
    place = saved.workplace
    if place.config is None:
        raise NotFound(f"session {session_id} has no configuration yet; its first run has not begun")
    return Session(
        session_id=session_id,
        root_session_id=session_id,
        leaf_event_id=place.leaf_event_id,
        status=place.status,
        end_reason=place.end_reason,  # type: ignore[arg-type]
        cwd=place.config.cwd,
        repo_root=place.config.repo_root,
        model_settings=place.config.model_settings,
        context_config=place.config.context_config,
        permission_config=place.config.permission_config,
        limits=place.config.limits,
        created_at=place.created_at,
        updated_at=place.updated_at,
    )


def _unavailable(error: RPCError) -> BackendUnavailable:
    return BackendUnavailable(f"Temporal did not answer: {error.message}", mend="salience doctor")


def _unanswered() -> BaseException:
    """What an update that nobody answered in time means; Temporal's client names a cancelled caller the same."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return BackendUnavailable(
        "no worker answered in time, and it may have been taken",
        mend="salience doctor; then repeat it, with the message id it had",
    )


def _not_found_or_unavailable(error: RPCError, session_id: str) -> SalienceError:
    if error.status == RPCStatusCode.NOT_FOUND:
        return NotFound(f"session {session_id} is not running", mend=f"salience resume {session_id}")
    return _unavailable(error)
