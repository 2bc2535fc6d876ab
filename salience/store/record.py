"""What the stores say of a session at any past event, whether it runs or has ended (spec PRJ-4, CTX-2)."""

from __future__ import annotations

from salience.context.explain import explain
from salience.context.manifest import assemble
from salience.context.messages import compile_messages
from salience.errors import NotFound
from salience.model import text
from salience.model.artifact import Artifact
from salience.model.bundle import BundleManifest, BundleSummary, ContextBundle
from salience.projection.projection import Projection
from salience.projection.transcript import Transcript
from salience.store.blobs import BlobStore
from salience.store.bundles import Bundles, StoredBundle
from salience.store.journal import Journal


class Record:
    """Reads the past of sessions."""

    def __init__(self, journal: Journal, bundles: Bundles, blobs: BlobStore) -> None:
        self._journal = journal
        self._bundles = bundles
        self._blobs = blobs

    async def at(self, session_id: str, event: str) -> Projection:
        """The fold after an event: the nearest snapshot and the events since; the transcript holds only the latter.

        Args:
            event: an event id, or a seq as text.

        Raises:
            NotFound: there is no such session or event.
        """
        seq = await self._journal.seq_of(session_id, event)
        saved = await self._journal.snapshot_before(session_id, seq)
        projection = Projection.empty(session_id)
        if saved is not None:
            projection = Projection.load(saved, Transcript(open=saved.transcript))
        async for event_ in self._journal.events(session_id, after=projection.cursor.seq, upto=seq):
            projection.fold(event_)
        return projection

    async def context(self, session_id: str, at: str | None = None, *, messages: bool = False) -> ContextBundle:
        """What a model saw, explained.

        Args:
            at: an event id or seq, for the latest context as of that event; or a bundle id; None: the latest.
            messages: compile the messages too.

        Raises:
            NotFound: no context had been built, or there is no such event, bundle or session.
        """
        if await self._journal.position(session_id) is None:
            raise NotFound(f"no session {session_id!r}", mend="salience list")
        stored = await self._stored(session_id, at)
        epoch = await self._bundles.epoch(session_id, stored)
        manifests = [BundleManifest.model_validate_json(bundle.manifest) for bundle in epoch]
        segments, excluded = assemble(manifests)
        compiled = ()
        if messages:
            shown = [segment.digest for segment in segments if segment.render != "tools"]
            texts = await self._bundles.texts(shown)
            for ref in shown:
                if ref not in texts:
                    texts[ref] = await self._blobs.get(ref)
            compiled = compile_messages(segments, texts.__getitem__)
        summary = BundleSummary.model_validate_json(stored.summary)
        return explain(manifests[-1], segments, excluded, summary, compiled)

    async def _stored(self, session_id: str, at: str | None) -> StoredBundle:
        if at is None:
            return await self._bundles.get(session_id)
        if at.startswith("b") and ":" not in at:
            return await self._bundles.get(session_id, text.mend(at))
        return await self._bundles.get(session_id, at_seq=await self._journal.seq_of(session_id, at))

    async def artifact(self, session_id: str, name: str) -> Artifact:
        """The artifact with an id, content hash (or at least 8 of its first digits) or uri; of several the latest.

        Raises:
            NotFound: the session has none.
        """
        ref = name.removeprefix("blob:")
        for artifact in reversed(await self._journal.artifacts(session_id)):
            if artifact.artifact_id == name or (len(ref) >= 8 and artifact.content_hash.startswith(ref)):
                return artifact
        raise NotFound(f"session {session_id} has no artifact {name!r}", mend=f"salience artifact list {session_id}")
