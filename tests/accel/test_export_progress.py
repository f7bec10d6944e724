"""What an export shows while it works, and where it plays a policy whose target is slow."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from accel.display.progress import LineProgress
from accel.exporting import build
from accel.exporting.build import export
from tests.accel.trained_runs import make_run


def test_an_export_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its policy would take too long to play, which is played on onnxruntime then."""
    monkeypatch.setattr(build, "PLAYABLE_S", 0.0)
    run = make_run(tmp_path / "runs", env="CartPole-v1", network="mlp:16x2", calibration_size=64)
    progress = LineProgress(stream := io.StringIO())
    bundle = export(run, tmp_path / "bundle", scheme="int8", format="c", episodes=2, progress=progress)
    made = bundle.contract["scheme"]  # "mixed" where int8 does not pay
    shown = list(dict.fromkeys(line.partition(" | ")[0] for line in stream.getvalue().splitlines()))
    begun = [stage for stage in shown if not stage.startswith("trying int8(")]
    assert begun != shown  # precision is chosen layer by layer
    size = (tmp_path / "bundle" / "policy.c").stat().st_size
    assert begun == [
        "collecting real inputs",
        "compressing as int8",
        f"writing {made} as c",
        begun[3],
        f"compiling {size / 1e6:.1f} MB of C",
        f"checking {made} as c against the test vectors",
        "measuring parity",
        "measuring latency",
        "playing fp32",
        "playing at random",
        f"playing {made} on onnxruntime (as c it would take 0 s) on the same seeds",
    ]
    assert bundle.report["returns"]["engine"] == "onnxruntime"
    assert "ran on onnxruntime, as its target is too slow here" in (bundle.path / "MODEL_CARD.md").read_text()
    weights = 4 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2
    generating, _, count = begun[3].removesuffix(" weights").rpartition(" ")
    assert generating == "generating C for" and weights <= int(count) <= weights + 50  # and scales
