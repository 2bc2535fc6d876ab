"""Crash tests: processes are killed on purpose, and the sessions must not show it (spec LOOP-3, LOOP-4)."""
