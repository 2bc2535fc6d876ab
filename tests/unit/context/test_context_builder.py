"""Single cases of the builder: what starts an epoch, what is left out first, what a build costs, what cannot fit."""

from __future__ import annotations

import pytest

from salience.context import (
    Built,
    Epoch,
    assemble,
    build,
    explain,
    left_out_rows,
    prefix_bytes,
    refs_needed,
    section_rows,
    segment_rows,
)
from salience.errors import VerificationFailed
from salience.model.environment import Environment
from salience.model.state import State
from tests.unit.context.context_record import BASH, RUN, Record, Words

LONG = "a line of output\n" * 300


def grown(record: Record, exchanges: int, window: int, epoch: Epoch | None = None) -> list[Built]:
    """Bundles built after each of so many exchanges with one long result."""
    built: list[Built] = []
    for turn in range(exchanges):
        record.exchange("let me see", [LONG])
        built.append(build(record.inputs(turn, context={"context_window_tokens": window}), epoch))
        epoch = built[-1].epoch
    return built


def test_order_is_volatility() -> None:
    record = Record()
    record.prompt("hello")
    built = build(record.inputs(earlier_runs=(RUN,)))
    segments, excluded = assemble([built.manifest])
    assert [segment.segment_id for segment in segments] == ["tools", "const", "agents:0", "memory", "tr0", "state"]
    assert [message.role for message in built.messages] == ["system", "developer", "summary", "user", "summary"]
    assert excluded == ()
    assert built.summary.tokens.total > sum(segment.tokens for segment in segments)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {"model_settings": {"model": "openai/gpt-4o"}}}, "model_changed"),
        ({"tools": (BASH,)}, "tools_changed"),
        ({"environment": Environment(cwd="/work", platform="linux", vcs_head="abc")}, "instructions_changed"),
        ({"config": {"hard_constraints": ("other",)}}, "instructions_changed"),
        ({"earlier_runs": (RUN,)}, "resume"),
    ],
)
def test_a_changed_head_starts_an_epoch(changes: dict[str, object], reason: str) -> None:
    record = Record()
    record.prompt("hello")
    first = build(record.inputs())
    assert (first.summary.epoch, first.summary.epoch_reason) == (1, "start")
    state = first.state
    for before in (state, first.epoch):
        second = build(record.inputs(2, **changes), before)
        assert (second.summary.epoch, second.summary.epoch_reason) == (2, reason)
        assert second.manifest.start == 0
        assert second.manifest.previous is None


def test_a_commit_starts_no_epoch() -> None:
    record = Record()
    record.prompt("hello")
    first = build(record.inputs())
    prefix = prefix_bytes(first)
    environment = record.inputs().environment.model_copy(update={"vcs_head": "def"})
    second = build(record.inputs(2, environment=environment, environment_ref="f" * 64), first.epoch)
    assert second.summary.epoch == 1
    assert prefix_bytes(second) == prefix
    assert b"def" in (second.tail[0].text or b"")


def test_results_are_masked_before_exchanges_go_and_exchanges_before_prompts() -> None:
    record = Record()
    record.prompt("the old request")
    record.exchange("fine", [])
    record.prompt("the request")
    stages: list[tuple[bool, bool, bool]] = []
    for built in grown(record, 60, 9_000):
        masks = built.state.masks
        stages.append((masks.results.messages > 0, masks.chatter.messages > 0, masks.prompts.messages > 0))
        assert built.fits
    assert [stage for at, stage in enumerate(stages) if at == 0 or stages[at - 1] != stage] == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
    ]


def test_old_prompts_go_last() -> None:
    record = Record()
    epoch: Epoch | None = None
    built: Built | None = None
    for turn in range(12):
        record.prompt(f"request {turn} " + "word " * 500)
        record.exchange("ok", [])
        built = build(record.inputs(turn, context={"context_window_tokens": 5_000}), epoch)
        assert built.fits
        epoch = built.epoch
    assert built is not None
    masks = built.state.masks
    assert masks.prompts.messages > 0
    assert masks.chatter.below >= masks.prompts.below
    assert b"earlier messages" in (built.tail[1].text or b"")


def test_a_reduction_is_hysteretic_and_lists_what_it_left_out() -> None:
    record = Record()
    record.prompt("the request")
    bundles = grown(record, 80, 15_000)
    reduced = [built for built in bundles if built.summary.decision == "reduced"]
    assert 2 <= len(reduced) < len(bundles) / 3
    for built in reduced:
        assert built.summary.tokens.total <= 0.6 * 14_000 + 200
        assert built.summary.view.projection_mode == "masked"
    dropping = [built for built in reduced if built.state.masks.chatter.messages]
    segments, excluded = assemble([dropping[-1].manifest])
    ids = {segment.segment_id for segment in segments}
    named = [candidate for candidate in excluded if candidate.segment_id.startswith("tr")]
    assert named
    assert all(candidate.segment_id not in ids and candidate.tokens > 0 for candidate in named)
    earlier = [candidate for candidate in excluded if not candidate.segment_id.startswith("tr")]
    assert len(earlier) == 1
    assert "earlier epochs" in earlier[0].why
    assert dropping[-1].summary.excluded_counts["dropped"] == dropping[-1].state.masks.chatter.messages


def test_a_long_session_keeps_summary_state_and_manifest_small() -> None:
    record = Record()
    record.prompt("the request")
    bundles = grown(record, 150, 9_000)
    assert max(len(built.summary.model_dump_json()) for built in bundles) <= 1_300
    assert max(len(built.state.model_dump_json()) for built in bundles) <= 700
    steady = [built for built in bundles[1:] if built.summary.decision == "below_threshold"]
    assert max(len(built.manifest.model_dump_json()) for built in steady) < 4_000


def test_what_cannot_fit_names_the_sizes_and_costs_no_history() -> None:
    record = Record()
    record.prompt("small")
    first = grown(record, 3, 9_000)[-1]
    record.prompt("huge " * 20_000, spilled=True)
    unfit = build(record.inputs(9, context={"context_window_tokens": 9_000}), first.epoch)
    assert not unfit.fits
    assert unfit.summary.decision == "unfit"
    position = record.entries[-1].position
    assert f"current request (tr{position}) " in (unfit.summary.problem or "")
    assert "8000 are usable" in (unfit.summary.problem or "")
    assert unfit.state.masks == first.state.masks
    assert unfit.summary.epoch == first.summary.epoch
    record.prompt("never mind")
    record.exchange("ok", [])
    again = build(record.inputs(10, context={"context_window_tokens": 9_000}), unfit.epoch)
    assert again.fits, again.summary.problem


def test_a_warm_build_counts_and_reads_only_what_is_new() -> None:
    record, words = Record(), Words()
    record.prompt("hello")
    for _ in range(100):
        record.exchange("let me see", ["result " * 100])
    wide = {"context_window_tokens": 900_000}
    epoch = build(record.inputs(1, context=wide), tokenizer=words.tokenizer).epoch
    record.exchange("one more", ["another result " * 100])
    words.asked.clear()
    record.asked.clear()
    built = build(record.inputs(2, context=wide), epoch, tokenizer=words.tokenizer)
    new = record.entries[-2:]
    assert record.asked == [entry.ref for entry in new]
    # The texts of the new entries, and for the new response the name and the arguments of its call.
    assert len(words.asked) <= 4
    assert len(built.manifest.appended) == 2
    assert built.manifest.start == len(built.prefix) - 2


def test_refs_needed_names_what_a_build_reads() -> None:
    record = Record()
    record.prompt("hello")
    bundles = grown(record, 40, 9_000)
    record.exchange("one more", [LONG])
    inputs = record.inputs(99, context={"context_window_tokens": 9_000})
    state = bundles[-1].state
    for before in (bundles[-1].epoch, state, None):
        needed = refs_needed(inputs, before)
        record.asked.clear()
        build(inputs, before)
        assert set(record.asked) == set(needed)
        assert len(needed) == len(set(needed))
    assert len(refs_needed(inputs, state)) < len(refs_needed(inputs, None))


def test_a_missing_text_leaves_the_epoch_as_it_was() -> None:
    record = Record()
    record.prompt("hello")
    epoch = build(record.inputs()).epoch
    record.exchange("see", [LONG])
    ref = record.entries[-1].ref
    assert ref is not None
    data = record.blobs.pop(ref)
    with pytest.raises(KeyError):
        build(record.inputs(2), epoch)
    record.blobs[ref] = data
    assert build(record.inputs(2), epoch).manifest.start == 4


def test_another_transcript_is_refused() -> None:
    record, other = Record(), Record()
    record.prompt("hello")
    record.exchange("see", [])
    epoch = build(record.inputs()).epoch
    other.exchange("not this one", ["at all"])
    with pytest.raises(ValueError, match="not the one"):
        build(other.inputs(2), epoch)


def test_a_broken_chain_of_manifests_is_an_error() -> None:
    record = Record()
    record.prompt("hello")
    bundles = grown(record, 3, 90_000)
    with pytest.raises(VerificationFailed, match="missing"):
        assemble([bundles[0].manifest, bundles[2].manifest])
    with pytest.raises(VerificationFailed):
        assemble([])


def test_a_bundle_of_a_failed_attempt_does_not_disturb_the_chain() -> None:
    record = Record()
    record.prompt("hello")
    first = build(record.inputs(1))
    state, stored = first.state, [first.manifest]
    record.exchange("see", ["ok"])
    stored.append(build(record.inputs(2), state).manifest)
    record.prompt("and more")
    third = build(record.inputs(2), state)
    stored.append(third.manifest)
    segments, _ = assemble(stored)
    assert [segment.segment_id for segment in segments] == [
        "tools", "const", "agents:0", "tr0", "tr1", "tr2", "tr3", "state",
    ]  # fmt: skip


def test_an_explained_bundle_says_why() -> None:
    record = Record()
    record.prompt("hello")
    bundles = grown(record, 60, 9_000)
    last = bundles[-1]
    manifests = [built.manifest for built in bundles if built.summary.epoch == last.summary.epoch]
    segments, excluded = assemble(manifests)
    bundle = explain(last.manifest, segments, excluded, last.summary, last.messages)
    sections = section_rows(bundle)
    assert [row.section for row in sections][:2] == ["tools", "constitution"]
    assert 0.9 < sum(row.share for row in sections) <= 1
    assert len(segment_rows(bundle)) == len(segments)
    assert all(row.why for row in left_out_rows(bundle))
    assert bundle.bundle_hash == last.summary.bundle_hash


def test_an_empty_session_has_a_bundle() -> None:
    record = Record()
    built = build(record.inputs(tools=(), state=State(session_id="s")))
    assert built.fits
    assert built.summary.view.source_message_count == 0


def test_earlier_runs_beyond_the_digest_are_listed_as_left_out() -> None:
    record = Record()
    record.prompt("hello")
    runs = tuple(RUN.model_copy(update={"run_id": f"run{at}"}) for at in range(12))
    _, excluded = assemble([build(record.inputs(earlier_runs=runs)).manifest])
    assert [(left_out.segment_id, left_out.source_refs) for left_out in excluded] == [
        ("memory:older", ("run:run0", "run:run1"))
    ]
