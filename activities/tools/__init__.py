"""The tools a model may call: a contract each, checked arguments, outcomes that declare what they touched (LOOP-4)."""
