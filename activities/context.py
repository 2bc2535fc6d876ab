"""A context is compiled from the journal as it stands at the activity's own schedule event, and stored with it (CTX-5)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.projection import Projecting, Projector
from activities.tools.catalog import specs
from salience.context.builder import Built, build, refs_needed
from salience.context.epoch import Epoch, EpochState
from salience.context.inputs import BuildInput
from salience.context.manifest import assemble
from salience.context.messages import compile_messages
from salience.errors import NotFound
from salience.model import calls
from salience.model.bundle import BundleManifest
from salience.model.canonical import canonical_json
from salience.model.environment import Environment
from salience.model.message import CompiledMessage
from salience.model.session import ModelSettings, SessionConfig
from salience.model.tool import ToolSpec
from salience.projection.projection import Projection
from salience.store.blobs import BlobStore
from salience.store.bundles import Bundles
from salience.store.journal import Journal
from salience.telemetry.failpoints import failpoint
from salience.workspace.environment import Surroundings, look_around

KEPT_EPOCHS = 64
KEPT_BUNDLES = 64


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a model is to see: canonical messages, tools and settings."""

    messages: Sequence[CompiledMessage]
    tools: tuple[ToolSpec, ...]
    model_settings: ModelSettings


@dataclass(slots=True)
class Contexts:
    """Compiled contexts by bundle: from memory where this process built them, from manifest and texts elsewhere."""

    journal: Journal
    bundles: Bundles
    blobs: BlobStore
    _kept: OrderedDict[tuple[str, str], Compiled] = field(default_factory=OrderedDict[tuple[str, str], Compiled])

    def keep(self, session_id: str, bundle_id: str, compiled: Compiled) -> None:
        """Remember what was just built for the model call that follows."""
        self._kept[session_id, bundle_id] = compiled
        while len(self._kept) > KEPT_BUNDLES:
            self._kept.popitem(last=False)

    async def compiled(self, session_id: str, bundle_id: str) -> Compiled:
        """The context of a bundle.

        Raises:
            NotFound: there is no such bundle.
        """
        kept = self._kept.get((session_id, bundle_id))
        if kept is not None:
            return kept
        bundle = await self.bundles.get(session_id, bundle_id)
        manifests = [
            BundleManifest.model_validate_json(stored.manifest)
            for stored in await self.bundles.epoch(session_id, bundle)
        ]
        segments, _ = assemble(manifests)
        texts = await self.texts([segment.digest for segment in segments])
        config = await self.config(session_id)
        return Compiled(compile_messages(segments, texts.__getitem__), specs(config.tools), config.model_settings)

    async def texts(self, digests: list[str]) -> dict[str, bytes]:
        """Texts by digest: the builder's own from the segments table, all others from the blobs."""
        found = await self.bundles.texts(digests)
        for ref in digests:
            if ref not in found:
                found[ref] = await self.blobs.get(ref)
        return found

    async def config(self, session_id: str) -> SessionConfig:
        """The session's configuration as of its latest projection.

        Raises:
            NotFound: the session is not known or not configured yet.
        """
        config = (await self.journal.latest(session_id)).workplace.config
        if config is None:
            raise NotFound(f"session {session_id} has no configuration yet")
        return config


class ContextActivities:
    """Builds contexts."""

    def __init__(self, projector: Projector, contexts: Contexts, bundles: Bundles, blobs: BlobStore) -> None:
        self._projector = projector
        self._contexts = contexts
        self._bundles = bundles
        self._blobs = blobs
        self._epochs: OrderedDict[str, Epoch] = OrderedDict()

    @activity.defn(name=calls.BUILD_CONTEXT)
    async def build_context(self, asked: calls.BuildContext) -> calls.BuiltContext:
        """Project what is new, then compile and store the next context, in one transaction.

        Raises:
            ApplicationError: `workspace_gone` when the session's folder does not exist.
        """
        began = time.perf_counter()
        info = activity.info()
        run_id = info.workflow_run_id or ""
        failpoint("context.before_project")
        async with self._projector.projecting(asked.session_id, run_id, upto_activity=info.activity_id) as opened:
            failpoint("context.after_project")
            opened.projection.transcript.seal(opened.projection.cursor.seq)
            built, config = await self._build(asked, opened.projection)
            await self._store(opened, built)
        failpoint("context.after_build")
        self._remember(asked.session_id, built)
        self._contexts.keep(
            asked.session_id,
            built.summary.bundle_id,
            Compiled(built.messages, specs(config.tools), config.model_settings),
        )
        return calls.BuiltContext(
            bundle=built.summary,
            source=opened.anchor,
            duration_ms=round((time.perf_counter() - began) * 1000),
        )

    async def _build(self, asked: calls.BuildContext, projection: Projection) -> tuple[Built, SessionConfig]:
        config = projection.workplace.config
        if config is None:
            raise NotFound(f"session {asked.session_id} has no configuration yet")
        around = self._look_around(config)
        around, environment_ref = await self._keep_surroundings(around, specs(config.tools))
        inputs = build_input(
            asked.session_id, asked.turn, projection, config, around.environment, environment_ref, specs(config.tools)
        )
        epoch = self._epoch(asked.session_id, projection)
        texts = dict(around.texts)
        needed = [ref for ref in refs_needed(inputs, epoch) if ref not in texts]
        texts.update(await self._contexts.texts(needed))
        return build(replace(inputs, text_of=texts.__getitem__), epoch), config

    def _epoch(self, session_id: str, projection: Projection) -> Epoch | EpochState | None:
        """The epoch of the last build that the log has: warm where this process made it, else as it was stored."""
        saved = projection.workplace.epoch
        warm = self._epochs.pop(session_id, None)
        if saved is None:
            return None
        state = EpochState.model_validate(saved)
        return warm if warm is not None and warm.state == state else state

    def _look_around(self, config: SessionConfig) -> Surroundings:
        try:
            return look_around(config.cwd, config.repo_root, config.context_config.max_instruction_bytes)
        except (FileNotFoundError, NotADirectoryError):
            raise ApplicationError(
                f"the workspace {config.cwd} does not exist any more; put it back and resume the session",
                type="workspace_gone",
                non_retryable=True,
            ) from None

    async def _keep_surroundings(self, around: Surroundings, tools: tuple[ToolSpec, ...]) -> tuple[Surroundings, str]:
        for data in around.texts.values():
            await self._blobs.put(data)
        tools_ref = await self._blobs.put(canonical_json([tool.plain() for tool in tools]))
        environment = around.environment.model_copy(update={"tools_ref": tools_ref})
        return replace(around, environment=environment), await self._blobs.put(canonical_json(environment.plain()))

    async def _store(self, opened: Projecting, built: Built) -> None:
        projection = opened.projection
        projection.workplace = projection.workplace.model_copy(
            update={
                "built_epoch": {
                    "bundle_id": built.summary.bundle_id,
                    "state": built.state.model_dump(mode="json"),
                }
            }
        )
        await self._bundles.put(
            opened.connection,
            projection.cursor.session_id,
            built.summary,
            projection.cursor.seq,
            canonical_json(built.manifest.plain()).decode(),
            built.texts,
        )

    def _remember(self, session_id: str, built: Built) -> None:
        self._epochs[session_id] = built.epoch
        while len(self._epochs) > KEPT_EPOCHS:
            self._epochs.popitem(last=False)


def build_input(
    session_id: str,
    turn: int,
    projection: Projection,
    config: SessionConfig,
    environment: Environment,
    environment_ref: str,
    tools: tuple[ToolSpec, ...],
) -> BuildInput:
    """The builder's input from a fold whose transcript is sealed; `verify` rebuilds past bundles from the same.

    The texts are not loaded yet: `refs_needed` says which are missing.
    """
    return BuildInput(
        session_id=session_id,
        turn=turn,
        call_index=projection.workplace.finished_model_calls,
        source_event_id=projection.cursor.last_event_id or "",
        source_seq=projection.cursor.seq,
        config=config,
        environment=environment,
        environment_ref=environment_ref,
        tools=tools,
        state=projection.state,
        earlier_runs=projection.workplace.earlier_runs,
        entries=projection.transcript.entries,
        current_request=projection.transcript.current_request,
        text_of=_not_loaded,
    )


def _not_loaded(ref: str) -> bytes:
    raise KeyError(ref)
