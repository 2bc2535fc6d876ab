"""Every error Salience raises on purpose, as one tree; each class says what the user can do about it.

SalienceError
├── UsageError            exit 2   the request itself is wrong
│   └── InputTooLarge              a user message over the limit
├── NotFound              exit 3   no such session, event or artifact
├── VerificationFailed    exit 4   the record does not agree with itself
│   ├── JournalConflict            a row that is already there differs
│   └── BlobCorrupt                stored bytes no longer match their hash
├── BackendUnavailable    exit 5   Temporal, Postgres or the blob store refused or timed out
│   └── StackNotRunning            the embedded stack has not been started
└── SessionFailed         exit 1   the session ended for a reason of its own
    ├── ModelUnusable              missing key, unknown model, refused request
    └── ContextUnfit               what may never be evicted exceeds the window
"""

from __future__ import annotations


class SalienceError(Exception):
    """The root of the tree.

    Args:
        message: what happened, in one line.
        mend: what the user can do about it, in one line; empty when the message says it.
    """

    exit_code = 1

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def line(self) -> str:
        """The error as the one line that goes to stderr (design §7)."""
        return f"{self.message} — {self.mend}" if self.mend else self.message


class UsageError(SalienceError):
    """The request is wrong as written: correct it and try again."""

    exit_code = 2


class InputTooLarge(UsageError):
    """A user message over 50 MB: put it in a file of the workspace and name the file instead."""


class NotFound(SalienceError):
    """No such session, event, bundle or artifact: `salience list` shows what there is."""

    exit_code = 3


class VerificationFailed(SalienceError):
    """The record does not agree with itself: `salience verify SESSION` names the place."""

    exit_code = 4


class JournalConflict(VerificationFailed):
    """A journal row exists with other content than history decodes to (spec EVT-3): do not append over it; run verify."""


class BlobCorrupt(VerificationFailed):
    """Stored bytes do not match their content hash (spec EVT-6): restore the object from a backup."""


class BackendUnavailable(SalienceError):
    """Temporal, Postgres or the blob store refused or timed out: `salience doctor` says which and how to mend it."""

    exit_code = 5


class StackNotRunning(BackendUnavailable):
    """The embedded stack is not up: run `salience up`."""


class SessionFailed(SalienceError):
    """The session ended for a reason of its own; it stays resumable with `salience say` or `salience resume`."""


class ModelUnusable(SessionFailed):
    """The model cannot be used as configured (key, name, request): correct the setting and say something to the session."""


class ContextUnfit(SessionFailed):
    """What may never be evicted exceeds the window (spec CTX-3): the message names the sizes; use a larger window."""
