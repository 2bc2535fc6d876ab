"""A stored bundle is its manifest; texts are kept once, by content, however many bundles share them (design §4)."""

from __future__ import annotations

from dataclasses import dataclass

from salience.errors import NotFound
from salience.model.bundle import BundleManifest, BundleSummary
from salience.store.postgres import Postgres


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """One row: where the bundle stands, and its manifest as canonical JSON."""

    bundle_id: str
    turn: int
    epoch: int
    source_seq: int
    bundle_hash: str
    manifest: str
    summary: str

    @classmethod
    def of(cls, summary: BundleSummary, source_seq: int, manifest: BundleManifest) -> StoredBundle:
        """The row of a bundle that was built."""
        return cls(
            bundle_id=summary.bundle_id,
            turn=summary.turn,
            epoch=summary.epoch,
            source_seq=source_seq,
            bundle_hash=summary.bundle_hash,
            manifest=manifest.model_dump_json(exclude_none=True),
            summary=summary.model_dump_json(exclude_none=True),
        )


class Bundles:
    """Manifests of bundles and the texts that the builder wrote for them."""

    def __init__(self, postgres: Postgres, tenant: str) -> None:
        self._postgres = postgres
        self._tenant = tenant

    async def get(self, session_id: str, bundle_id: str | None = None, *, at_seq: int | None = None) -> StoredBundle:
        """A bundle by id, the latest built from nothing after a seq, or the latest of all.

        Raises:
            NotFound: there is none.
        """
        where, values = "", [self._tenant, session_id]
        if bundle_id is not None:
            where, values = "AND bundle_id = %s", [*values, bundle_id]
        elif at_seq is not None:
            where, values = "AND source_seq <= %s", [*values, at_seq]
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                f"SELECT {_COLUMNS} FROM bundles WHERE tenant = %s AND session_id = %s {where}"
                " ORDER BY source_seq DESC, turn DESC LIMIT 1",
                values,
            )
            row = await found.fetchone()
        if row is None:
            raise NotFound(f"session {session_id} has no such bundle", mend=f"salience show {session_id}")
        return StoredBundle(*row)

    async def epoch(self, session_id: str, bundle: StoredBundle) -> list[StoredBundle]:
        """The bundles of an epoch up to one, in order and with that one last: together they give its segments.

        Bundles of attempts that the log does not have may be among them; each manifest names the one it extends.
        """
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                f"SELECT {_COLUMNS} FROM bundles WHERE tenant = %s AND session_id = %s AND epoch = %s"
                " AND turn <= %s ORDER BY source_seq, turn",
                (self._tenant, session_id, bundle.epoch, bundle.turn),
            )
            stored = [StoredBundle(*row) for row in await found.fetchall()]
        return [*(other for other in stored if other.bundle_id != bundle.bundle_id), bundle]

    async def texts(self, digests: list[str]) -> dict[str, bytes]:
        """The texts of digests as far as the builder wrote them."""
        if not digests:
            return {}
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT digest, body FROM segments WHERE tenant = %s AND digest = ANY(%s)", (self._tenant, digests)
            )
            return {row[0]: bytes(row[1]) for row in await found.fetchall()}


_COLUMNS = "bundle_id, turn, epoch, source_seq, bundle_hash, manifest, summary"
