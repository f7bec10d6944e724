"""A run's files that would exhaust a parser or memory: a named error; see ``test_mutations``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import save_file

from accel.config import TrainConfig
from accel.errors import AccelError, CheckpointError
from accel.runs.checkpoint import checksum, load_checkpoint
from accel.runs.directory import RunDirectory
from accel.runs.loading import load_run
from accel.runs.summary import Summary
from accel.system.untrusted import MAX_TOML_BYTES
from tests.accel.runs.trained_runs import make_run


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 30_000,
        "a = " + "{a=" * 20_000,
        "a" + ".a" * 30_000 + " = 1",
        "\n".join(f"b{i}" + ".a" * 60 + " = 1" for i in range(100)),
        "[" + "a." * 1000 + "a]",
        "seed = " + "9" * 5000,
        'env_arg = ["a=' + "-" * 30_000 + '1"]',
        "cls = 1",
        "self = 1",
        "#" * (MAX_TOML_BYTES + 1),
        "env = '\udc80'",
        "seed = 1979-05-27T07:32:00Z",
    ],
    ids=lambda text: text[:20],
)
def test_configurations_that_exhaust_a_parser(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    directory = RunDirectory.open(tmp_path, read_only=True)
    with suppress(AccelError) if text.startswith("env_arg") else pytest.raises(AccelError, match=r"\S"):
        TrainConfig.from_json(directory.read_config())


@pytest.mark.parametrize("content", ["[" * 100_000, '{"lag": ' * 50_000, " " * 2**23, '{"unknown": 1}'])
def test_summaries_that_exhaust_a_parser(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"no readable summary\.json"):
        Summary.read(tmp_path)


def test_a_network_that_the_checkpoint_does_not_hold_takes_no_memory(tmp_path: Path) -> None:
    """Terabytes, if it were built."""
    run = make_run(tmp_path, env="CartPole-v1", network="mlp:8x1+lstm:4")
    config = (run / "config.toml").read_text().replace("mlp:8x1+lstm:4", "mlp:999999x99")
    (run / "config.toml").write_text(config)
    with pytest.raises(CheckpointError, match="does not fit network 'mlp:999999x99'"):
        load_run(run)


def test_a_checkpoint_of_deep_state_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = f'{{"tensors": {{}}, "optimizer": {{}}, "counters": {deep}}}'
    metadata = {"format": "accel-checkpoint", "version": "1", "document": text, "sha256": checksum(text, {})}
    save_file({}, tmp_path / "deep.safetensors", metadata)
    with pytest.raises(CheckpointError, match="not a checkpoint's structure"):
        load_checkpoint(tmp_path / "deep.safetensors")
