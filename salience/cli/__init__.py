"""The command line is a thin edge: it turns words into calls of the client and answers into text (spec PPL-1)."""

from salience.cli.commands import app, main

__all__ = ["app", "main"]
