"""The laws of the context builder, on transcripts nobody thought of (spec CTX-3..7, INV 5, 6, 12)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from salience.context import Built, Epoch, EpochState, assemble, build, compile_messages, prefix_bytes
from salience.context.groups import groups_of
from salience.model.bundle import BundleManifest
from tests.unit.context.context_record import Record

TEXTS = st.one_of(
    st.text(max_size=40),
    st.builds(
        lambda word, n: (word + " ") * n, st.sampled_from(["warning", "文件", "0x1f", "\n"]), st.integers(1, 900)
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("prompt"), TEXTS),
        st.tuples(st.just("exchange"), TEXTS, st.lists(TEXTS, max_size=3)),
    ),
    min_size=1,
    max_size=16,
)
WINDOWS = st.sampled_from([3_000, 4_000, 6_000, 12_000])
LAW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Session:
    """A session that builds after every step, as its loop does."""

    record: Record
    bundles: list[Built]
    states: list[EpochState | None]
    prefixes: list[bytes]
    texts: dict[str, bytes]


def lived(steps: list[tuple[str, ...]], window: int) -> Session:
    """Play steps against a warm epoch, remembering what each build started from."""
    record = Record()
    record.prompt("first request")
    session = Session(record, [], [], [], {})
    epoch: Epoch | None = None
    for turn, step in enumerate([(), *steps]):
        play(record, step)
        session.states.append(epoch.state if epoch else None)
        built = build(record.inputs(turn, context={"context_window_tokens": window}), epoch)
        epoch = built.epoch
        session.bundles.append(built)
        session.prefixes.append(prefix_bytes(built))
        session.texts.update(built.texts)
    return session


def play(record: Record, step: tuple[object, ...]) -> None:
    """Add one step to a record."""
    match step:
        case ("prompt", str(text)):
            record.prompt(text, spilled=len(text) > 100)
        case ("exchange", str(said), list(results)):
            record.exchange(said, [str(result) for result in results])  # pyright: ignore[reportUnknownVariableType]
        case _:
            pass


def manifests_up_to(session: Session, at: int) -> list[BundleManifest]:
    """The manifests of a bundle's epoch, up to it."""
    number = session.bundles[at].summary.epoch
    return [built.manifest for built in session.bundles[: at + 1] if built.summary.epoch == number]


@LAW
@given(STEPS, WINDOWS)
def test_a_prefix_only_grows_within_an_epoch(steps: list[tuple[str, ...]], window: int) -> None:
    session = lived(steps, window)
    for at in range(1, len(session.bundles)):
        if session.bundles[at].summary.epoch == session.bundles[at - 1].summary.epoch:
            assert session.prefixes[at].startswith(session.prefixes[at - 1])
        else:
            assert session.bundles[at].summary.epoch == session.bundles[at - 1].summary.epoch + 1


@LAW
@given(STEPS, WINDOWS)
def test_a_cold_build_equals_the_warm_one(steps: list[tuple[str, ...]], window: int) -> None:
    session = lived(steps, window)
    record = Record()
    record.prompt("first request")
    for turn, step in enumerate([(), *steps]):
        play(record, step)
        warm = session.bundles[turn]
        cold = build(record.inputs(turn, context={"context_window_tokens": window}), session.states[turn])
        assert cold.summary == warm.summary
        assert cold.manifest == warm.manifest
        assert cold.state == warm.state
        assert cold.texts == warm.texts
        assert prefix_bytes(cold) == session.prefixes[turn]


@LAW
@given(STEPS, WINDOWS)
def test_stored_manifests_give_back_the_exact_messages(steps: list[tuple[str, ...]], window: int) -> None:
    session = lived(steps, window)
    texts = {**session.record.blobs, **session.texts}
    last = len(session.bundles) - 1
    segments, _ = assemble(manifests_up_to(session, last))
    assert compile_messages(segments, texts.__getitem__) == session.bundles[last].messages
    assert len({segment.segment_id for segment in segments}) == len(segments)
    total = session.bundles[last].summary.tokens
    assert sum(segment.tokens for segment in segments) == sum(total.by_section.values())


@LAW
@given(STEPS, WINDOWS)
def test_every_segment_has_a_reason_and_a_source(steps: list[tuple[str, ...]], window: int) -> None:
    session = lived(steps, window)
    for at in range(len(session.bundles)):
        segments, excluded = assemble(manifests_up_to(session, at))
        assert all(segment.reason and segment.source_refs and segment.source_refs[0] for segment in segments)
        assert all(candidate.why and candidate.source_refs for candidate in excluded)
        for segment in segments:
            if segment.role in ("system", "developer"):
                assert segment.trust in ("system", "project")


@LAW
@given(STEPS, WINDOWS)
def test_what_may_never_go_is_there_and_groups_stay_whole(steps: list[tuple[str, ...]], window: int) -> None:
    session = lived(steps, window)
    record = Record()
    record.prompt("first request")
    for turn, step in enumerate([(), *steps]):
        play(record, step)
        built = session.bundles[turn]
        segments, _ = assemble(manifests_up_to(session, turn))
        ids = {segment.segment_id: segment for segment in segments}
        positions = {entry.message_id: entry.position for entry in record.entries}
        request = ids[f"tr{positions[record.current_request]}"]
        assert request.freshness == "current"
        assert not request.evictable
        card = built.tail[0]
        assert card.text is not None
        assert b"mend the build" in card.text
        assert b"which branch?" in card.text
        assert b"never touch main" in next(
            part.text or b"" for part in built.epoch.head if part.segment.role == "system" and part.message
        )
        for group in groups_of(record.entries):
            shown = [f"tr{at}" in ids for at in range(group.first, group.last + 1)]
            assert all(shown) or not any(shown)
        responses = [entry.position for entry in record.entries if entry.kind == "response"]
        for entry in record.entries[responses[-1] if responses else 0 :]:
            assert not ids[f"tr{entry.position}"].masked


@LAW
@given(STEPS, WINDOWS)
def test_reductions_never_go_back_and_what_fits_fits(steps: list[tuple[str, ...]], window: int) -> None:
    session = lived(steps, window)
    for at, built in enumerate(session.bundles):
        summary = built.summary
        assert summary.fits == (summary.problem is None) == (summary.tokens.total <= window - 1_000)
        assert (summary.decision == "unfit") == (not summary.fits)
        if at:
            before, now = session.bundles[at - 1].state.masks, built.state.masks
            assert now.results.below >= before.results.below
            assert now.chatter.below >= before.chatter.below
            assert now.prompts.below >= before.prompts.below
        if not summary.fits:
            assert "tr" in (summary.problem or "") or "const" in (summary.problem or "")
