"""The ontology: one file per noun, frozen, without I/O (spec §1)."""
