"""An export made without a server: some events of several types, with a blob in one line and one in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from salience.log.chain import Row, row_of
from salience.log.export import Writer
from salience.log.imported import ImportedLog, imported_log
from salience.log.named import named_blobs
from salience.log.reading import Reading
from salience.model import event as ev
from salience.model.canonical import digest
from salience.model.export import Header
from salience.model.message import Usage
from salience.model.session import ModelSettings, SessionConfig
from salience.model.state import StatePatch

LONG = ("a prompt of some length \u2028 with a line separator; " * 8).encode()
ANSWER = b'{"schema_version":1,"content":[]}'
BLOBS = {digest(data): data for data in (LONG, ANSWER)}
SESSION = "s-export"
FIRST = "11111111-aaaa:1:session"


def payloads() -> list[ev.Payload]:
    """What happened."""
    config = SessionConfig(cwd="/somewhere/else", model_settings=ModelSettings(model="openai/any"))
    return [
        ev.SessionStarted(generation=1, decoder_version=1, config=config, root_session_id=SESSION),
        ev.UserPromptSubmitted(message_id="m", text=FIRST, text_ref=digest(LONG), size_bytes=400, delivery="start"),
        ev.SessionPaused(),
        ev.SessionResumed(after="pause"),
        ev.StateUpdated(patch=StatePatch()),
        ev.ModelResponseReceived(
            turn=1, bundle_id="b1-0", response_ref=digest(ANSWER), stop_reason="end_turn", usage=Usage(), model="any"
        ),
        ev.SessionEnded(reason="answered"),
    ]


def rows(said: Sequence[ev.Payload] | None = None, session_id: str = SESSION) -> list[Row]:
    """Their journal rows."""
    made: list[Row] = []
    for seq, payload in enumerate(said or payloads(), start=1):
        event = ev.Event(
            event_id=FIRST if seq == 1 else f"11111111-aaaa:{seq}:slot",
            session_id=session_id,
            run_id="11111111-aaaa",
            parent_event_id=made[-1].event_id if made else None,
            seq=seq,
            timestamp=f"2026-01-01T00:00:{seq:02}.000000Z",
            type=type(payload).__name__,
            actor=payload.actor,
            payload=payload,
        )
        made.append(row_of(event, made[-1].hash if made else "", 1))
    return made


def lines(made: Sequence[Row] | None = None, *, session_id: str = SESSION, piece_bytes: int = 100) -> list[bytes]:
    """The lines of their export."""
    made = made or rows()
    writer = Writer()
    head = ev.Anchor(seq=made[-1].seq, head=made[-1].hash)
    header = Header(
        salience_export=1,
        session_id=session_id,
        decoder_versions=(1,),
        base=ev.Anchor(seq=0, head=""),
        head=head,
        blobs="included",
    )
    out = [writer.header(header)]
    previous, done = "", set[str]()
    for row in made:
        for ref in (
            [] if row.payload is None else named_blobs(ev.PAYLOADS[row.type].model_validate_json(row.payload).plain())
        ):
            if ref in done or ref not in BLOBS:
                continue
            done.add(ref)
            data = BLOBS[ref]
            cuts = range(0, len(data), piece_bytes)
            out += [
                writer.piece(ref, number, data[at : at + piece_bytes], last=at == cuts[-1])
                for number, at in enumerate(cuts)
            ]
        out.append(writer.event(row, previous))
        previous = row.hash
    return [*out, writer.end()]


def read(data: bytes, portion: int = 1 << 20) -> tuple[Reading, dict[str, bytes]]:
    """A file read, and the blobs that were whole in it."""
    reading, kept, open_ = Reading(), dict[str, bytes](), bytearray()

    def take(pieces: Iterable[object]) -> None:
        for piece in pieces:
            if piece.first:  # type: ignore[attr-defined]
                open_.clear()
            open_.extend(piece.data)  # type: ignore[attr-defined]
            if piece.whole:  # type: ignore[attr-defined]
                kept[piece.digest] = bytes(open_)  # type: ignore[attr-defined]

    for at in range(0, len(data), portion):
        take(reading.feed(data[at : at + portion]))
    take(reading.finish())
    return reading, kept


def log_of(data: bytes, session_id: str = SESSION) -> ImportedLog:
    """A file as a log, under a digest that does not depend on its bytes."""
    return imported_log(read(data)[0].sections, "f" * 64, session_id, None)
