"""A walk folds a session's events, and compiles each bundle and each compaction again where it was made then (spec CTX-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace

from activities.compaction import Compactions
from activities.context import build_input, environment_of
from salience.compaction import Compaction, Refusal
from salience.context.builder import Built, build
from salience.context.epoch import Epoch, EpochState
from salience.context.inputs import BUILDER_VERSION
from salience.context.view import refs_needed
from salience.errors import BlobCorrupt, NotFound
from salience.log.chain import Row
from salience.log.imported import ImportedLog
from salience.model import event as ev
from salience.model.bundle import BundleManifest
from salience.projection.projection import Projection
from salience.store.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Walked:
    """A context that was compiled again.

    Attributes:
        recorded: the event that tells of it, as the journal has it.
        built: what was compiled; None when it cannot be compared: another builder's, or some of its texts are not here.
        manifest: what is stored of it.
        seen: the fold that it was compiled from, as of then; an imported one's is that of where it was compiled first.
    """

    recorded: ev.Event
    built: Built | None
    manifest: BundleManifest | None
    seen: Projection

    @property
    def matches(self) -> bool:
        """Whether it is the one that was recorded."""
        told = self.recorded.payload
        if self.built is None or not isinstance(told, ev.ContextBuilt):
            return False
        return self.built.summary.bundle_hash == told.bundle.bundle_hash


class Walk:
    """Walks over sessions; nothing is recorded."""

    def __init__(self, blobs: BlobStore, compactions: Compactions) -> None:
        self._blobs = blobs
        self._compactions = compactions

    async def session(
        self,
        projection: Projection,
        events: list[ev.Event],
        rows: list[Row],
        imported: ImportedLog | None,
        again: list[Compaction | Refusal] | None = None,
    ) -> AsyncIterator[Walked]:
        """Fold a session's events, and compile each bundle where it was compiled then."""
        if imported is not None:
            async for walked in self._imported(projection, imported, again):
                yield walked
            events = events[sum(event is not None for event in imported.events) :]
        heads = {row.seq: row.hash for row in rows}
        async for walked in self._events(projection, events, heads, again, tolerant=imported is not None):
            yield walked

    async def _imported(
        self, projection: Projection, log: ImportedLog, again: list[Compaction | Refusal] | None
    ) -> AsyncIterator[Walked]:
        """Compile an imported session's bundles as they were compiled: from the events as they were recorded.

        A bundle's hash covers the ids of its sources, so under the names that import gave them no bundle would be the
        same. What is compiled from the recorded events is compared, and then renamed as they are.
        """
        source = Projection.empty(log.recorded_as)
        folded = 0

        def fold(upto: int) -> None:
            nonlocal folded
            for event in log.events[folded:upto]:
                if event is not None:
                    self._fold(projection, event, log.rows[event.seq - 1].hash)
            folded = max(folded, upto)

        async for walked in self._source(source, log, again):
            recorded = log.events[log.at(walked.recorded.seq).seq - 1]
            if recorded is None:
                continue
            if isinstance(recorded.payload, ev.ContextBuilt):
                fold(recorded.payload.source.seq)
            if walked.built is not None and walked.matches:
                _built_here(projection, walked.built)
            manifest = log.manifest(walked.manifest) if walked.manifest is not None else None
            yield replace(walked, recorded=recorded, manifest=manifest)
        fold(len(log.events))
        projection.cursor, projection.head = log.cursor, log.anchor.head

    async def _source(
        self, source: Projection, log: ImportedLog, again: list[Compaction | Refusal] | None
    ) -> AsyncIterator[Walked]:
        if log.inner is not None:
            async for walked in self._imported(source, log.inner, again):
                yield walked
        own = [recorded.event for recorded in log.own if recorded.event is not None]
        heads = {recorded.envelope.seq: recorded.hash for recorded in log.own}
        async for walked in self._events(source, own, heads, again, tolerant=True):
            yield walked

    async def _events(
        self,
        projection: Projection,
        events: Iterable[ev.Event],
        heads: Mapping[int, str],
        again: list[Compaction | Refusal] | None,
        *,
        tolerant: bool,
    ) -> AsyncIterator[Walked]:
        """Fold events, and compile each bundle where it was compiled then.

        Args:
            projection: before the first event.
            heads: the chain's hash at each event.
            again: each compaction is done again where it was done then, and what came of it is put here; None: it is not.
            tolerant: a bundle whose texts are not here cannot be compared; otherwise that is an error.
        """
        listed = list(events)
        due: dict[int, ev.Event] = {
            event.payload.source.seq: event for event in listed if isinstance(event.payload, ev.ContextBuilt)
        }
        kept = projection.workplace.epoch
        epoch: Epoch | EpochState | None = EpochState.model_validate(kept) if kept else None
        for event in listed:
            self._fold(projection, event, heads[event.seq])
            if again is not None and isinstance(event.payload, ev.CompactionStarted):
                try:
                    again.append(await self._compacted_again(projection, event.payload))
                except (NotFound, BlobCorrupt) as error:
                    if not tolerant:
                        raise
                    again.append(Refusal("nothing_to_summarise", error.message))
            recorded = due.get(event.seq)
            if recorded is None or not isinstance(recorded.payload, ev.ContextBuilt):
                continue
            projection.transcript.seal(event.seq)
            if recorded.payload.bundle.builder_version != BUILDER_VERSION:
                epoch = None
                yield Walked(recorded, None, None, projection)
                continue
            try:
                built = await self._compile(projection, recorded.payload, epoch)
            except (NotFound, BlobCorrupt):
                if not tolerant:
                    raise
                epoch = None
                yield Walked(recorded, None, None, projection)
                continue
            epoch = built.epoch
            _built_here(projection, built)
            yield Walked(recorded, built, built.manifest, projection)

    def _fold(self, projection: Projection, event: ev.Event, head: str) -> None:
        projection.fold(event)
        projection.cursor = projection.cursor.model_copy(
            update={"seq": event.seq, "last_event_id": event.event_id, "run_id": event.run_id}
        )
        projection.head = head

    async def _compile(
        self, projection: Projection, recorded: ev.ContextBuilt, epoch: Epoch | EpochState | None
    ) -> Built:
        config = projection.workplace.config
        if config is None:
            raise NotFound(f"session {projection.cursor.session_id} was never configured")
        environment, tools = await environment_of(self._blobs, recorded.bundle.environment_ref)
        inputs = build_input(
            projection.cursor.session_id,
            recorded.bundle.turn,
            projection,
            config,
            environment,
            recorded.bundle.environment_ref,
            tools,
        )
        texts = {ref: await self._blobs.get(ref) for ref in refs_needed(inputs, epoch)}
        return build(replace(inputs, text_of=texts.__getitem__), epoch)

    async def _compacted_again(self, projection: Projection, asked: ev.CompactionStarted) -> Compaction | Refusal:
        return await self._compactions.plan(
            projection.cursor.session_id,
            projection,
            trigger=asked.trigger,
            focus=asked.focus,
            window=asked.window_tokens,
        )


def _built_here(projection: Projection, built: Built) -> None:
    """Let the fold remember a build, as the activity that built it does, until the log tells of it."""
    state = {"bundle_id": built.summary.bundle_id, "state": built.state.model_dump(mode="json")}
    projection.workplace = projection.workplace.model_copy(update={"built_epoch": state})
