"""What only the file store does: a blob is whole or absent on the disk, and no name leaves the folder (spec EVT-6).

What both stores do is in tests/integration/test_blob_stores.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from salience.errors import BackendUnavailable
from salience.store.blobs import FileBlobs, quoted, unquoted

PARTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3)


async def test_nothing_half_written_stays(tmp_path: Path) -> None:
    ref = await FileBlobs(tmp_path).put(b"whole")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [ref]


async def test_a_store_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BackendUnavailable, match="cannot be written"):
        await FileBlobs(tmp_path / "file").put(b"x")


@given(PARTS)
@example([".."])
@example([".", "..", "a"])
@example(["%2E%2E"])
@example(["文" * 200, "a" * 1_000])
def test_any_name_stays_inside_the_folder_and_can_be_read_back(parts: list[str]) -> None:
    name = "archive/" + "/".join(part.replace("\ud800", "?").replace("/", "-") for part in parts)
    path = quoted(name)
    assert not {"", ".", ".."} & set(path.split("/"))
    assert max(map(len, path.split("/"))) <= 255
    assert path.startswith("archive/")
    assert unquoted(path) == name


async def test_a_folder_that_vanished_is_an_outage_and_not_made_anew(tmp_path: Path) -> None:
    root, away = tmp_path / "disk", tmp_path / "unmounted"
    blobs = FileBlobs(root)
    ref = await blobs.put(b"kept")
    root.rename(away)
    for attempt in (blobs.put(b"more"), blobs.get(ref), blobs.name("a/name", ref), blobs.named("a")):
        with pytest.raises(BackendUnavailable, match="gone"):
            await attempt
    assert not root.exists()
    away.rename(root)
    assert await blobs.get(ref) == b"kept"
    await blobs.put(b"more")
