"""The tools a model may call: a contract each, checked arguments, and outcomes that declare what they touched (LOOP-4)."""
