"""Verification takes nothing on trust: it walks the chain, decodes history again and compiles every bundle again (EVT-4).

One walk serves `verify` and `verify --rebuild`: fold the events, and at each ContextBuilt compile the bundle that it tells of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from activities.compaction import Compactions
from activities.raw_log import RawLog, SourceRun
from activities.walk import Walk
from salience.compaction import Compaction, Refusal
from salience.errors import BackendUnavailable, BlobCorrupt, NotFound
from salience.log.chain import Row, event_of, fault_of, row_of
from salience.log.decode import Cursor, begin_run, decode
from salience.log.imported import ImportedLog, is_import
from salience.log.named import named_blobs
from salience.model import event as ev
from salience.model.compaction import CompactionRecord
from salience.projection.projection import Projection, artifacts_of
from salience.projection.transcript import prompt_of
from salience.store.blobs import BlobStore
from salience.store.bundles import StoredBundle
from salience.store.history import Histories
from salience.store.imports import Imports, ReadImport
from salience.store.journal import Batch, Journal, Position, Run
from salience.store.postgres import Postgres
from salience.verify import invariants
from salience.verify.findings import Finding, Report

CHECKED = (
    "INV 1", "INV 2", "INV 3", "INV 4", "INV 5", "INV 6", "INV 7", "INV 8", "INV 12", "PRJ-1", "EVT-2", "EVT-4", "EVT-6",
)  # fmt: skip

_HASHED_BYTES = 1024 * 1024


@dataclass(slots=True)
class _Tally:
    findings: list[Finding] = field(default_factory=list[Finding])
    from_history: int = 0
    from_archive: int = 0
    imported: int = 0
    not_retained: int = 0
    resets: list[str] = field(default_factory=list[str])
    bundles: int = 0
    not_comparable: int = 0
    compactions: int = 0
    blobs: int = 0
    left_out: int = 0

    def add(self, rule: str, message: str, seq: int | None = None) -> None:
        self.findings.append(Finding(rule=rule, message=message, seq=seq))


class Verification:
    """Verifies and rebuilds sessions from their raw log.

    Args:
        histories: None verifies without Temporal, from archives alone.
    """

    def __init__(self, postgres: Postgres, journal: Journal, blobs: BlobStore, histories: Histories | None) -> None:
        self._postgres = postgres
        self._journal = journal
        self._blobs = blobs
        self._imports = Imports(blobs)
        self._raw_log = RawLog(journal, blobs, histories)
        self._walk = Walk(blobs, Compactions(journal, blobs))

    async def verify(self, session_id: str) -> Report:
        """Check a session of any status against its raw log, its chain and the invariants.

        Raises:
            NotFound: there is no such session.
            BackendUnavailable: a store did not answer.
        """
        position = await self._journal.position(session_id)
        if position is None:
            raise NotFound(f"no session {session_id!r}", mend="salience list")
        tally = _Tally()
        rows = [row async for row in self._journal.rows(session_id)]
        self._chain(rows, tally)
        last = rows[-1] if rows else None
        if (position.seq, position.head) != ((last.seq, last.hash) if last else (0, "")):
            tally.add(
                "EVT-4", f"the session stands at row {position.seq}, its journal ends at {len(rows)}", len(rows) + 1
            )
        intact = not tally.findings
        runs = await self._journal.runs(session_id)
        imported = await self._imported(session_id, runs, tally)
        await self._against_history(session_id, runs, rows, imported, tally)
        events = [event_of(row) for row in rows if row.payload is not None] if intact else []
        erased = sum(row.payload is None for row in rows)
        lost = imported is None and bool(runs) and is_import(runs[0].run_id)
        if intact and not erased and not lost:
            await self._walk_and_compare(session_id, events, rows, imported, tally)
        return Report(
            session_id=session_id,
            ok=not tally.findings,
            events=len(rows),
            runs=len(runs),
            runs_from_history=tally.from_history,
            runs_from_archive=tally.from_archive,
            runs_imported=tally.imported,
            import_faults=imported.faults if imported is not None else (),
            runs_not_retained=tally.not_retained,
            reset_runs=tuple(tally.resets),
            bundles=tally.bundles,
            bundles_not_comparable=tally.not_comparable,
            erased=erased,
            blobs=tally.blobs,
            blobs_left_out=tally.left_out,
            compactions=tally.compactions,
            checked=CHECKED,
            findings=tuple(tally.findings),
        )

    # --- the chain ----------------------------------------------------------------------------------------------------

    def _chain(self, rows: list[Row], tally: _Tally) -> None:
        previous, hashes = "", {0: ""}
        for seq, row in enumerate(rows, start=1):
            fault = fault_of(row, previous, seq)
            if fault is not None:
                tally.add("EVT-4", fault, seq)
                return
            previous = hashes[seq] = row.hash
        for row in rows:
            if row.type == "ContextBuilt" and row.payload is not None:
                source = ev.ContextBuilt.model_validate_json(row.payload).source
                if hashes.get(source.seq) != source.head:
                    message = (
                        f"history anchored another journal: row {row.seq} names a head that row {source.seq} has not"
                    )
                    tally.add("EVT-4", message, source.seq)
                    return

    # --- the raw log --------------------------------------------------------------------------------------------------

    async def _imported(self, session_id: str, runs: list[Run], tally: _Tally) -> ReadImport | None:
        """The file that the session began as, if it began as one."""
        if not runs or not is_import(runs[0].run_id):
            return None
        try:
            read = await self._imports.read(session_id, runs[0].archive_ref)
        except (NotFound, BlobCorrupt) as error:
            tally.add("EVT-2b", f"the file that {session_id} was imported from: {error.message}")
            return None
        if read is None:
            tally.add("EVT-2b", f"nothing says which file {session_id} was imported from")
        return read

    async def _against_history(
        self, session_id: str, runs: list[Run], rows: list[Row], imported: ReadImport | None, tally: _Tally
    ) -> None:
        cursor = Cursor(session_id=session_id)
        head = ""
        for run in runs:
            if imported is not None and is_import(run.run_id):
                tally.imported += 1
                for stored, fresh in zip(rows, imported.log.rows, strict=False):
                    if not _same(stored, fresh):
                        message = f"row {fresh.seq} ({stored.type}) is not what the imported file says ({fresh.type})"
                        tally.add("EVT-2b", message, fresh.seq)
                        return
                cursor, head = imported.log.cursor, imported.log.anchor.head
                continue
            source = None if is_import(run.run_id) else await self._raw_log.run(session_id, run)
            if source is None:
                tally.not_retained += 1
                following = [r for r in runs if r.generation == run.generation + 1]
                upto = following[0].base_seq if following else len(rows)
                cursor = _skipped(cursor, run, rows, upto)
                head = rows[upto - 1].hash if upto and upto <= len(rows) else head
                continue
            tally.from_archive += int(source.archived)
            tally.from_history += int(not source.archived)
            if run.reset_from is not None:
                tally.resets.append(run.run_id)
            decoded, cursor = decode(source.events, begin_run(cursor, run.run_id, shared_until=run.shared_until))
            for event in decoded.events:
                fresh = row_of(event, head, cursor.decoder_version)
                head = fresh.hash
                if event.seq > len(rows):
                    break  # recorded, not yet projected
                stored = rows[event.seq - 1]
                if not _same(stored, fresh):
                    message = f"row {event.seq} ({stored.type}) is not what history decodes to ({event.type})"
                    tally.add("EVT-2", message, event.seq)
                    return

    # --- the walk -----------------------------------------------------------------------------------------------------

    async def _walk_and_compare(
        self, session_id: str, events: list[ev.Event], rows: list[Row], imported: ReadImport | None, tally: _Tally
    ) -> None:
        tally.findings.extend(invariants.results_follow_calls(events))
        found = len(tally.findings)
        await self._blobs_hold(events, imported, tally)
        if len(tally.findings) > found:
            return  # no bundle can be compiled again without its texts
        projection = Projection.empty(session_id)
        again: list[Compaction | Refusal] = []
        damaged = imported is not None and bool(imported.faults)
        asked, request = (0, ""), None
        async for walked in self._walk.session(projection, events, rows, imported and imported.log, again):
            if walked.built is None or (damaged and not walked.matches):
                tally.not_comparable += 1
                continue
            built, seq, seen = walked.built, walked.recorded.seq, walked.seen
            tally.bundles += 1
            if not walked.matches and isinstance(walked.recorded.payload, ev.ContextBuilt):
                tally.add("INV 6", f"bundle {walked.recorded.payload.bundle.bundle_id} compiles to another hash", seq)
            if built.fits:
                segments = [part.segment for part in (*built.prefix, *built.tail)]
                tally.findings.extend(invariants.segments_are_explained(segments, seq))
                if (id(seen), seen.transcript.current_request) != asked:  # found at once, where it was just delivered
                    asked, request = (id(seen), seen.transcript.current_request), _delivered(seen)
                tally.findings.extend(invariants.essentials_are_in(segments, request, seen.state, seq))
        if not tally.not_comparable:
            tally.findings.extend(_compacted_otherwise(events, again))
        if not damaged and not tally.left_out:
            await self._compactions_hold(session_id, events, projection, tally)
        tally.findings.extend(invariants.files_are_known(events, projection.state))
        tally.findings.extend(invariants.transcript_pairs(projection.transcript.entries))
        stored = await self._journal.latest(session_id)
        if stored.cursor.seq != len(rows):
            return  # the session went on meanwhile: what is stored now is of more rows than were read
        if stored.state != projection.state:
            tally.add("PRJ-1", "the stored state is not what the events fold to")
        if stored.stats != projection.stats:
            tally.add("PRJ-1", "the stored stats are not what the events fold to")

    async def _compactions_hold(
        self, session_id: str, events: Iterable[ev.Event], projection: Projection, tally: _Tally
    ) -> None:
        """What serves in the place of messages names them, splits no call from its result, and has changed none."""
        entries = projection.transcript.entries
        first_kept: dict[str | None, int] = {None: 0}
        for event in events:
            if not isinstance(event.payload, ev.CompactionCompleted):
                continue
            tally.compactions += 1
            made = event.payload.checkpoint
            record = CompactionRecord.model_validate_json(await self._blobs.get(made.record_ref))
            span = entries[first_kept.get(made.previous, 0) : made.first_kept]
            found = [*invariants.names_its_range(record), *invariants.stands_for(record, made, span)]
            found += invariants.splits_no_group(made, entries)
            tally.findings.extend(finding.model_copy(update={"seq": event.seq}) for finding in found)
            first_kept[made.compaction_id] = made.first_kept
        stored = await self._journal.transcript(session_id)
        tally.findings.extend(invariants.transcript_is_kept(entries, stored))

    async def _blobs_hold(self, events: Iterable[ev.Event], imported: ReadImport | None, tally: _Tally) -> None:
        """Every blob the journal names is there, and its bytes are what they were."""
        seen: set[str] = set()
        for event in events:
            for ref in named_blobs(event.payload.plain()):
                if ref in seen:
                    continue
                seen.add(ref)
                try:
                    async for _ in self._blobs.pieces(ref, _HASHED_BYTES):
                        pass
                except (NotFound, BlobCorrupt) as error:
                    if isinstance(error, NotFound) and imported is not None and imported.leaves_out(event.run_id, ref):
                        tally.left_out += 1
                        continue
                    tally.add("EVT-6", f"{error.message} (named by {event.type})", event.seq)
                tally.blobs += 1

    # --- rebuilding -----------------------------------------------------------------------------------------------------

    async def rebuild(self, session_id: str) -> int:
        """Re-create the journal and everything folded from it, from history or archives; returns the number of rows.

        Rows that are there stay, and must be identical.

        Raises:
            NotFound: neither Temporal nor the archives know the session.
            JournalConflict: a row that is there differs from what history decodes to.
        """
        sources = await self._raw_log.runs(session_id)
        if not sources:
            raise NotFound(f"neither Temporal nor the archives know session {session_id!r}")
        if sources[0].imported is not None:
            await self._imports.reading(sources[0].imported.log.file_ref, keep=True)
        batch, runs = await self.folded(session_id, sources)
        async with self._postgres.transaction() as connection:
            for run in runs:
                await self._journal.register_run(connection, session_id, run)
            await self._journal.forget_folds(connection, session_id)
            position = await self._journal.position(session_id) or Position(0, "")
            if not await self._journal.record(connection, position, batch):
                raise BackendUnavailable(f"{session_id} is being worked on", mend="try again")
        for run in runs:
            if run.archive_ref is not None and run.history_events is not None:
                await self._journal.register_archive(session_id, run.run_id, run.archive_ref, run.history_events)
        return len(batch.rows)

    async def folded(self, session_id: str, sources: list[SourceRun]) -> tuple[Batch, list[Run]]:
        """A session's rows and all that is folded and compiled from them, from its raw log alone.

        Args:
            sources: its runs, first to last; there is at least one.
        """
        cursor = Cursor(session_id=session_id)
        projection = Projection.empty(session_id)
        events: list[ev.Event] = []
        rows: list[Row] = []
        runs: list[Run] = []
        imported: ImportedLog | None = None
        for source in sources:
            if source.imported is not None:
                imported = source.imported.log
                rows += imported.rows
                events += [event for event in imported.events if event is not None]
                cursor = imported.cursor
                runs.append(source.run)
                continue
            base_seq = cursor.seq
            cursor = begin_run(cursor, source.run.run_id, shared_until=source.run.shared_until)
            runs.append(replace(source.run, generation=cursor.generation, base_seq=base_seq))
            decoded, cursor = decode(source.events, cursor)
            for data in decoded.blobs.values():
                await self._blobs.put(data)
            for event in decoded.events:
                rows.append(row_of(event, rows[-1].hash if rows else "", cursor.decoder_version))
                events.append(event)
        bundles: list[StoredBundle] = []
        texts: dict[str, bytes] = {}
        async for walked in self._walk.session(projection, events, rows, imported):
            recorded, built = walked.recorded, walked.built
            if built is None or walked.manifest is None or not isinstance(recorded.payload, ev.ContextBuilt):
                continue
            if imported is not None and not walked.matches:
                continue  # what a model saw is told as it was, or not at all
            bundles.append(StoredBundle.of(built.summary, recorded.payload.source.seq, walked.manifest))
            texts.update(built.texts)
        projection.cursor = cursor
        projection.head = rows[-1].hash if rows else ""
        batch = Batch(
            projection=projection,
            rows=rows,
            entries=projection.transcript.entries,
            artifacts=[artifact for event in events for artifact in artifacts_of(event)],
            bundles=bundles,
            texts=texts,
        )
        return batch, runs


def _compacted_otherwise(events: Iterable[ev.Event], again: Sequence[Compaction | Refusal]) -> list[Finding]:
    """Compactions that come to another end when they are done again from the same events."""
    findings: list[Finding] = []
    begun = -1
    for event in events:
        match event.payload:
            case ev.CompactionStarted():
                begun += 1
                continue
            case ev.CompactionCompleted(checkpoint=checkpoint):
                made = again[begun]
                same = isinstance(made, Compaction) and made.checkpoint == checkpoint
                name = checkpoint.compaction_id
            case ev.CompactionFailed(kind=kind) if kind != "activity_failed":
                same, name = isinstance(again[begun], Refusal), "a refused compaction"
            case _:
                continue
        if not same:
            message = f"{name} comes to another end when it is done again"
            findings.append(Finding(rule="INV 6", message=message, seq=event.seq))
    return findings


def _delivered(projection: Projection) -> str | None:
    """Event id of the current request; None before there is one."""
    found = prompt_of(reversed(projection.transcript.entries), projection.transcript.current_request)
    return found.event_id if found is not None else None


def _same(stored: Row, fresh: Row) -> bool:
    """Identical but for a payload that was erased, whose digest still tells what it was."""
    return (stored.event_id, stored.metadata, stored.payload_digest, stored.hash) == (
        fresh.event_id,
        fresh.metadata,
        fresh.payload_digest,
        fresh.hash,
    )


def _skipped(cursor: Cursor, run: Run, rows: list[Row], upto: int) -> Cursor:
    """The cursor behind a run whose history is gone: the journal alone tells of it."""
    last = rows[upto - 1].event_id if 0 < upto <= len(rows) else cursor.last_event_id
    return begin_run(cursor, run.run_id).model_copy(update={"seq": upto, "last_event_id": last, "ended": True})
