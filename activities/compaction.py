"""A compaction is decided from the journal and the blobs alone, so that a retry, a dry run and a rebuild decide alike (CMP-2).

Nothing here looks at the workspace: the environment is the one the latest context was built in.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from temporalio import activity

from activities.context import build_input, environment_of
from activities.projection import Projector
from salience.compaction import POLICY, Compaction, Refusal, compact
from salience.context.budget import Budget, budget_of
from salience.context.epoch import EpochState
from salience.context.inputs import BuildInput
from salience.context.view import View, refs_needed, view_of
from salience.errors import NotFound
from salience.model import calls
from salience.model.canonical import canonical_json
from salience.model.compaction import Checkpoint, CompactionRecord, CompactionTrigger
from salience.projection.projection import Projection
from salience.projection.stretch import Stretch
from salience.store.blobs import BlobStore
from salience.store.journal import Journal
from salience.telemetry.failpoints import failpoint


@dataclass(frozen=True, slots=True)
class Standing:
    """A session's view at one moment: what a build would get, and the epoch it would go on with."""

    inputs: BuildInput
    epoch: EpochState | None


class Compactions:
    """Compacts views and rolls them back, without recording anything."""

    def __init__(self, journal: Journal, blobs: BlobStore) -> None:
        self._journal = journal
        self._blobs = blobs

    async def plan(
        self,
        session_id: str,
        projection: Projection,
        *,
        trigger: CompactionTrigger,
        focus: str = "",
        window: int | None = None,
    ) -> Compaction | Refusal:
        """The compaction of a session's view as a fold has it.

        Args:
            session_id: the session.
            projection: the fold; it is not changed.
            trigger: why.
            focus: what the user asked to pay attention to.
            window: the window to compact for, in tokens, where it is not the session's.
        """
        standing = await self._standing(session_id, projection)
        if standing is None:
            return Refusal("nothing_to_summarise", "no context has been built yet")
        serving = standing.inputs.checkpoint
        previous = await self.record(serving) if serving else None
        return compact(
            standing.inputs,
            standing.epoch,
            previous,
            generation=projection.workplace.compactions + 1,
            trigger=trigger,
            focus=focus,
            window=window,
        )

    async def keep(self, made: Compaction) -> None:
        """Store what a checkpoint names."""
        for data in made.blobs:
            await self._blobs.put(data)

    async def record(self, checkpoint: Checkpoint) -> CompactionRecord:
        """The record of a checkpoint.

        Raises:
            NotFound: its blob is gone.
        """
        return CompactionRecord.model_validate_json(await self._blobs.get(checkpoint.record_ref))

    async def without(self, session_id: str, projection: Projection, to: int | None) -> calls.RolledBack:
        """What a rollback leads to: the full history where it fits, else the checkpoint below, else a refusal.

        Args:
            session_id: the session.
            projection: the fold; it is not changed.
            to: number of the checkpoint that shall serve, 0 for the full history; None: as far back as fits.
        """
        serving = projection.workplace.checkpoint
        if serving is None:
            return calls.RolledBack(refused="no compaction is active")
        stack = await self.stack(session_id, serving)
        below = [None, *stack[:-1]]
        if to is not None and not 0 <= to < serving.number:
            return calls.RolledBack(refused=f"checkpoint {serving.number} serves; --to takes 0 to {serving.number - 1}")
        wanted = [None, *below[-1:]] if to is None else [below[to]]
        sizes: list[str] = []
        before = await self._measured(session_id, projection, serving)
        for checkpoint in dict.fromkeys(wanted):
            view, budget = await self._measured(session_id, projection, checkpoint)
            if view.tokens <= budget.usable:
                return calls.RolledBack(
                    compaction_id=serving.compaction_id,
                    checkpoint=checkpoint,
                    tokens_before=before[0].tokens,
                    tokens_after=view.tokens,
                )
            name = f"checkpoint {checkpoint.number}" if checkpoint else "the full history"
            sizes.append(f"{name} has {view.tokens} tokens and {budget.usable} are usable")
        return calls.RolledBack(refused="; ".join(sizes))

    async def stack(self, session_id: str, top: Checkpoint) -> list[Checkpoint]:
        """The checkpoints under one and itself, the first compaction first."""
        known = {c.compaction_id: c for c in await self._journal.checkpoints(session_id)}
        stack = [top]
        while (previous := stack[0].previous) is not None:
            stack.insert(0, known[previous])
        return stack

    async def _measured(
        self, session_id: str, projection: Projection, checkpoint: Checkpoint | None
    ) -> tuple[View, Budget]:
        """The view with another checkpoint, and what there is room for."""
        everything = (await self._journal.transcript(session_id))[: projection.transcript.open.length]
        past = replace(projection, transcript=replace(projection.transcript, entries=Stretch(everything)))
        past.workplace = projection.workplace.model_copy(update={"checkpoint": checkpoint})
        standing = await self._standing(session_id, past)
        if standing is None:
            raise NotFound(f"session {session_id} has no context yet")
        view = view_of(standing.inputs, standing.epoch)
        config, gauge = standing.inputs.config.context_config, standing.inputs.gauge
        return view, budget_of(config, gauge, total=view.tokens, epoch=view.epoch.state.number)

    async def _standing(self, session_id: str, projection: Projection) -> Standing | None:
        """What a build would get now, with its texts; None before the first context."""
        place = projection.workplace
        if place.config is None or not place.environment_ref:
            return None
        environment, tools = await environment_of(self._blobs, place.environment_ref)
        # Sealed on the side: what is due is delivered by the build that follows, not by this look ahead.
        transcript = replace(projection.transcript, entries=projection.transcript.entries.copy())
        transcript.seal(projection.cursor.seq)
        sealed = replace(projection, transcript=transcript)
        inputs = build_input(session_id, place.turn, sealed, place.config, environment, place.environment_ref, tools)
        epoch = EpochState.model_validate(place.epoch) if place.epoch is not None else None
        refs = refs_needed(inputs, epoch)
        texts = {ref: await self._blobs.get(ref) for ref in refs}
        return Standing(replace(inputs, text_of=texts.__getitem__), epoch)


class CompactionActivities:
    """The activities: each projects up to its own schedule event first, and so reads the same range at every attempt."""

    def __init__(self, projector: Projector, compactions: Compactions, blobs: BlobStore) -> None:
        self._projector = projector
        self._compactions = compactions
        self._blobs = blobs

    @activity.defn(name=calls.COMPACT)
    async def compact(self, asked: calls.Compact) -> calls.Compacted:
        """Make a checkpoint of the session's view, or say why there is none."""
        began = time.perf_counter()
        info = activity.info()
        projection = await self._projector.project(
            asked.session_id, info.workflow_run_id or "", upto_activity=info.activity_id
        )
        failpoint("compact.before_record")
        made = await self._compactions.plan(
            asked.session_id, projection, trigger=asked.trigger, focus=asked.focus, window=asked.window_tokens
        )
        duration_ms = round((time.perf_counter() - began) * 1000)
        if isinstance(made, Refusal):
            evidence = await self._blobs.put(canonical_json(made.record.plain())) if made.record else None
            return calls.Compacted(
                kind=made.kind,
                message=made.message,
                checks=made.checks,
                evidence_ref=evidence,
                tokens_before=made.tokens_before,
                duration_ms=duration_ms,
            )
        await self._compactions.keep(made)
        failpoint("compact.after_record")
        return calls.Compacted(
            checkpoint=made.checkpoint,
            policy=POLICY,
            checks=made.checks,
            tokens_before=made.checkpoint.tokens_before,
            duration_ms=duration_ms,
        )

    @activity.defn(name=calls.ROLLBACK)
    async def rollback(self, asked: calls.Rollback) -> calls.RolledBack:
        """Say what serves after a rollback; history makes it so."""
        info = activity.info()
        projection = await self._projector.project(
            asked.session_id, info.workflow_run_id or "", upto_activity=info.activity_id
        )
        return await self._compactions.without(asked.session_id, projection, asked.to)
