"""Run directories as training leaves them, with networks made up here: clear decisions, no time spent on learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from accel.config import TrainConfig
from accel.envs.factory import make_vector_env
from accel.envs.spaces import EnvSpec
from accel.networks import PolicyNetwork, build_from_config
from accel.runs.checkpoint import CheckpointState
from accel.runs.directory import RunDirectory

torch.set_num_threads(1)

ENV_STEPS, VERSION = 1234, 7


def make_network(config: TrainConfig, spec: EnvSpec) -> PolicyNetwork:
    """A network whose policy head is large enough that actions depend on observations."""
    torch.manual_seed(5)
    network = build_from_config(config.policy, spec)
    with torch.no_grad():
        for parameter in network.policy_head.parameters():
            if parameter.dim() > 1:
                parameter.mul_(100)
    if network.normaliser is not None:
        network.normaliser.update(make_records(spec))
    return network


def make_records(spec: EnvSpec) -> torch.Tensor:
    """64 records as environments give them: random numbers, as bytes where they lie beside an image."""
    if spec.observation_dtype != "uint8":
        return torch.randn(64, *spec.observation_shape) * 3 + 1
    records = torch.randint(0, 256, (64, *spec.observation_shape), dtype=torch.uint8)
    for part in spec.parts:
        if part.dtype == "float32":
            records[:, part.start : part.stop] = (torch.randn(64, part.size) * 3 + 1).view(torch.uint8)
    return records


def make_run(
    directory: Path,
    *,
    checkpoint: bool = True,
    counters: Mapping[str, object] = {},
    make: Callable[[TrainConfig, EnvSpec], PolicyNetwork] = make_network,
    **options: object,
) -> Path:
    """A run directory with a checkpoint; ``counters`` replace those that training writes, None leaves one out."""
    config = TrainConfig.create(**{"compressor": "int8", **options, "results_dir": directory, "name": "run"})
    environment = make_vector_env(
        config.environment.env,
        1,
        env_args=config.environment.kwargs,
        wrappers=config.environment.wrapper,
        squash_actions=config.environment.squash_actions,
    )
    spec = environment.spec
    environment.close()
    with RunDirectory.create(directory, "run") as run:
        run.write_config(config.to_toml_values())
        if checkpoint:
            network = make(config, spec)
            written = {"env_steps": ENV_STEPS, "version": VERSION, "spec": spec.to_json(), **(counters or {})}
            tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
            kept = {name: value for name, value in written.items() if value is not None}
            run.save_checkpoint(CheckpointState(tensors, {}, kept))  # type: ignore[arg-type]
    return directory / "run"
