"""The context compiler: what a model sees is compiled for each call from the record, and explained (spec CTX)."""

from salience.context.builder import Built, build, prefix_bytes
from salience.context.epoch import Epoch, EpochState
from salience.context.explain import change_rows, explain, left_out_rows, section_rows, segment_rows
from salience.context.inputs import BUILDER_VERSION, BuildInput
from salience.context.manifest import assemble
from salience.context.messages import compile_messages
from salience.context.tokens import Tokenizer, tokenizer_for
from salience.context.view import refs_needed

__all__ = [
    "BUILDER_VERSION",
    "BuildInput",
    "Built",
    "Epoch",
    "EpochState",
    "Tokenizer",
    "assemble",
    "build",
    "change_rows",
    "compile_messages",
    "explain",
    "left_out_rows",
    "prefix_bytes",
    "refs_needed",
    "section_rows",
    "segment_rows",
    "tokenizer_for",
]
