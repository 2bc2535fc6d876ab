"""A context is compiled from the journal as it stands at the activity's own schedule event, and stored with it (CTX-5)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import projection as projected
from activities.projection import MANY, Projector, aside
from activities.tools.catalog import specs
from salience.context.builder import Built, build
from salience.context.epoch import Epoch, EpochState
from salience.context.inputs import BuildInput
from salience.context.manifest import assemble
from salience.context.messages import compile_messages
from salience.context.view import refs_needed
from salience.errors import NotFound
from salience.model import calls
from salience.model.bundle import BundleManifest
from salience.model.canonical import canonical_json
from salience.model.environment import Environment
from salience.model.message import CompiledMessage
from salience.model.session import ModelSettings, SessionConfig
from salience.model.tool import ToolSpec
from salience.projection.projection import Projection
from salience.projection.transcript import prompt_of
from salience.store.blobs import BlobStore
from salience.store.bundles import Bundles, StoredBundle
from salience.store.journal import Journal
from salience.telemetry.failpoints import failpoint
from salience.verify import invariants
from salience.workspace.environment import Surroundings, look_around

_TOOLS = TypeAdapter(tuple[ToolSpec, ...])
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
    _configs: OrderedDict[str, tuple[str, SessionConfig]] = field(
        default_factory=OrderedDict[str, tuple[str, SessionConfig]]
    )

    def keep(self, session_id: str, run_id: str, bundle_id: str, compiled: Compiled, config: SessionConfig) -> None:
        """Remember what was just built for the model call and the tools that follow."""
        self._kept[session_id, bundle_id] = compiled
        self._configs[session_id] = (run_id, config)
        for kept in (self._kept, self._configs):
            while len(kept) > KEPT_BUNDLES:
                kept.popitem(last=False)

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
        """The session's configuration in the run of the present activity; it changes only between runs.

        Raises:
            NotFound: the session is not known or not configured yet.
        """
        run_id, kept = self._configs.get(session_id, ("", None))
        if kept is not None and activity.in_activity() and run_id == activity.info().workflow_run_id:
            return kept
        config = (await self.journal.standing(session_id)).workplace.config
        if config is None:
            raise NotFound(f"session {session_id} has no configuration yet")
        return config


class ContextActivities:
    """Builds contexts."""

    def __init__(self, projector: Projector, contexts: Contexts, blobs: BlobStore) -> None:
        self._projector = projector
        self._contexts = contexts
        self._blobs = blobs
        self._epochs: OrderedDict[str, Epoch] = OrderedDict()
        self._surroundings: OrderedDict[str, tuple[tuple[Environment, tuple[ToolSpec, ...]], Environment, str]] = (
            OrderedDict()
        )

    @activity.defn(name=calls.BUILD_CONTEXT)
    async def build_context(self, asked: calls.BuildContext) -> calls.BuiltContext:
        """Project what is new, then compile and store the next context, in one transaction.

        Raises:
            ApplicationError: `workspace_gone` when the session's folder does not exist.
        """
        began = time.perf_counter()
        info = activity.info()
        building: list[Built] = []

        async def compile_next(projection: Projection) -> projected.Compiled:
            failpoint("context.after_project")
            projection.transcript.seal(projection.cursor.seq)
            built = await self._build(asked, projection)
            _check(built, projection)
            building[:] = [built]
            return _stored(projection, built)

        failpoint("context.before_project")
        projection = await self._projector.project(
            asked.session_id, info.workflow_run_id or "", upto_activity=info.activity_id, then=compile_next
        )
        failpoint("context.after_build")
        (built,) = building
        self._remember(asked.session_id, info.workflow_run_id or "", projection, built)
        return calls.BuiltContext(
            bundle=built.summary,
            source=projected.anchor_of(projection),
            duration_ms=round((time.perf_counter() - began) * 1000),
        )

    async def _build(self, asked: calls.BuildContext, projection: Projection) -> Built:
        config = projection.workplace.config
        if config is None:
            raise NotFound(f"session {asked.session_id} has no configuration yet")
        around = self._look_around(config)
        tools = specs(config.tools)
        around, environment_ref = await self._keep_surroundings(around, tools)
        inputs = build_input(
            asked.session_id, asked.turn, projection, config, around.environment, environment_ref, tools
        )
        epoch = self._epoch(asked.session_id, projection)
        texts = dict(around.texts)
        for ref in refs_needed(inputs, epoch):
            if ref not in texts:
                texts[ref] = await self._blobs.get(ref)
        many = len(projection.transcript.entries) > MANY
        return await aside(many, build, replace(inputs, text_of=texts.__getitem__), epoch)

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
        """Store what the surroundings consist of, unless it was stored a moment ago: they rarely change."""
        kept = self._surroundings.get(around.environment.cwd)
        if kept is None or kept[0] != (around.environment, tools):
            for data in around.texts.values():
                await self._blobs.put(data)
            tools_ref = await self._blobs.put(canonical_json([tool.plain() for tool in tools]))
            environment = around.environment.model_copy(update={"tools_ref": tools_ref})
            environment_ref = await self._blobs.put(canonical_json(environment.plain()))
            kept = ((around.environment, tools), environment, environment_ref)
            self._surroundings[around.environment.cwd] = kept
            while len(self._surroundings) > KEPT_EPOCHS:
                self._surroundings.popitem(last=False)
        _, environment, environment_ref = kept
        return replace(around, environment=environment), environment_ref

    def _remember(self, session_id: str, run_id: str, projection: Projection, built: Built) -> None:
        """Keep what the next build and the model call that follows will ask for."""
        self._epochs[session_id] = built.epoch
        while len(self._epochs) > KEPT_EPOCHS:
            self._epochs.popitem(last=False)
        config = projection.workplace.config
        if config is not None:
            compiled = Compiled(built.messages, specs(config.tools), config.model_settings)
            self._contexts.keep(session_id, run_id, built.summary.bundle_id, compiled, config)


def _check(built: Built, projection: Projection) -> None:
    """The invariants that speak of a bundle, before anything of it is recorded (spec INV 5, INV 12).

    Raises:
        ApplicationError: `invariant_broken`, which ends the run: no model may see such a context.
    """
    if not built.fits:
        return
    seq, asked = projection.cursor.seq, projection.transcript.current_request
    found = prompt_of((part.entry for part in built.prefix if part.entry is not None), asked)
    request = found.event_id if found is not None else f"message {asked}"
    segments = [part.segment for part in (*built.prefix, *built.tail)]
    findings = [
        *invariants.segments_are_explained(segments, seq),
        *invariants.essentials_are_in(segments, request if asked else None, projection.state, seq),
    ]
    if findings:
        told = "; ".join(f"{finding.rule}: {finding.message}" for finding in findings)
        raise ApplicationError(told, type="invariant_broken", non_retryable=True)


def _stored(projection: Projection, built: Built) -> projected.Compiled:
    """What is recorded of a build; the fold remembers its epoch until the log has it."""
    state = {"bundle_id": built.summary.bundle_id, "state": built.state.model_dump(mode="json")}
    projection.workplace = projection.workplace.model_copy(update={"built_epoch": state})
    bundle = StoredBundle.of(built.summary, projection.cursor.seq, built.manifest)
    return projected.Compiled(bundles=[bundle], texts=built.texts)


async def environment_of(blobs: BlobStore, environment_ref: str) -> tuple[Environment, tuple[ToolSpec, ...]]:
    """The environment and the tool contracts that a context was built with.

    Raises:
        NotFound: a blob is gone.
    """
    environment = Environment.model_validate_json(await blobs.get(environment_ref))
    return environment, _TOOLS.validate_json(await blobs.get(environment.tools_ref))


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
        checkpoint=projection.workplace.checkpoint,
        gauge=projection.workplace.gauge,
        text_of=_not_loaded,
    )


def _not_loaded(ref: str) -> bytes:
    raise KeyError(ref)
