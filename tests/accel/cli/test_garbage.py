"""Processes of ours do not look for garbage at their end; those of users that call us do as they did."""

from __future__ import annotations

import gc
import sys

import pytest

from accel.cli import main
from accel.system.garbage import without_collection


def test_an_import_without_collections_leaves_the_collector_as_it_was() -> None:
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_collection():
        raise ImportError
    assert gc.isenabled()


def test_only_a_process_that_is_the_command_keeps_its_objects_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    words = ["verify", "there/is/no/such/bundle"]
    assert main(words) != 0 and gc.get_freeze_count() == before
    monkeypatch.setattr(sys, "argv", ["accel", *words])
    try:
        assert main() != 0 and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
