"""The manifests of an epoch give back every bundle of it, segment by segment (spec CTX-5, CTX-7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from salience.errors import VerificationFailed
from salience.model.bundle import BundleManifest, Excluded, Segment


def assemble(manifests: Sequence[BundleManifest]) -> tuple[tuple[Segment, ...], tuple[Excluded, ...]]:
    """The segments of the last of the manifests, and what its epoch left out.

    Args:
        manifests: the stored manifests of one epoch up to the wanted one, in the order they were stored; bundles of
            failed attempts may be among them, because each manifest names the one it extends.

    Returns:
        Segments in the bundle's order, their freshness and evictability as of this bundle; and the excluded candidates.

    Raises:
        VerificationFailed: a manifest that the last one builds on is missing or too short.
    """
    if not manifests:
        raise VerificationFailed("no manifest of the bundle is stored")
    last = manifests[-1]
    prefix: list[Segment] = []
    excluded: tuple[Excluded, ...] = ()
    for manifest in _chain(last, {manifest.bundle_id: manifest for manifest in manifests}):
        if manifest.start > len(prefix):
            raise VerificationFailed(f"{manifest.bundle_id} extends {manifest.start} segments, {len(prefix)} are known")
        prefix = [*prefix[: manifest.start], *manifest.appended]
        excluded = manifest.excluded or excluded
    return (*_as_of_now(prefix, last.current_request), *last.tail), excluded


def _chain(last: BundleManifest, known: dict[str, BundleManifest]) -> Iterable[BundleManifest]:
    chain = [last]
    while (previous := chain[-1].previous) is not None:
        if previous not in known or len(chain) > len(known):
            raise VerificationFailed(f"{chain[-1].bundle_id} extends {previous}, whose manifest is missing")
        chain.append(known[previous])
    return reversed(chain)


def _as_of_now(prefix: Sequence[Segment], current_request: str) -> Iterable[Segment]:
    responses = [at for at, segment in enumerate(prefix) if segment.render == "response"]
    unseen_from = responses[-1] if responses else 0
    for at, segment in enumerate(prefix):
        if segment.section != "transcript":
            yield segment
        elif segment.segment_id == current_request:
            yield segment.model_copy(update={"freshness": "current", "evictable": False})
        elif at >= unseen_from:
            yield segment.model_copy(update={"freshness": "recent", "evictable": False})
        else:
            yield segment.model_copy(update={"freshness": "old"})
