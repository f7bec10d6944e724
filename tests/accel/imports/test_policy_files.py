"""``--policy FILE``: the kind of a file is found in its content, and what is no policy ends in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accel.errors import AccelError
from accel.imports.policy import ImportedPolicy, import_policy
from tests.accel.imports.foreign_policies import Agent
from tests.accel.imports.test_import_policy import CARTPOLE, HERE, agent, ppo_weights, refuses, write_zip


def outputs(policy: ImportedPolicy, rows: torch.Tensor) -> torch.Tensor:
    return policy.policy(rows)[0]


def test_the_content_says_what_a_file_is_whatever_its_name(tmp_path: Path) -> None:
    """A zip of Stable-Baselines3, a state dict by torch.save, and one in safetensors, under names that mislead."""
    zipped = write_zip(tmp_path / "policy.onnx", ppo_weights(4, 2))
    assert import_policy(zipped, CARTPOLE).architecture == "PPO or A2C: 64-64 Tanh"
    trained = agent(Agent, "CartPole-v1")
    save_file(trained.state_dict(), tmp_path / "agent.pt")
    torch.save(trained.state_dict(), tmp_path / "agent.zip")  # noqa: TID251 - as others write their policies
    rows = torch.randn(5, 4)
    for name in ("agent.pt", "agent.zip"):
        policy = import_policy(tmp_path / name, CARTPOLE, module=f"{HERE}:Agent")
        assert torch.equal(outputs(policy, rows), trained.actor(rows))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"plain text", {}, "is none of these: zip file of Stable-Baselines3; TorchScript archive; "),
        (b"", {}, "is none of these"),
        (b"\x80\x04\x95pickle", {}, "or a pickle, which is not read"),
        (b"\x80\x04\x95pickle", {"activation": "elu"}, "--activation is for files that do not name it"),
        (None, {"module": f"{HERE}:Agent"}, "brings its own network: leave out --module"),
    ],
)
def test_what_is_no_policy_ends_in_a_sentence(
    content: bytes | None, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy"
    write_zip(path, ppo_weights(4, 2)) if content is None else path.write_bytes(content)
    with pytest.raises(AccelError, match=message):
        import_policy(path, CARTPOLE, **options)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path, "is a directory: give a run")):
        refuses(message, path, CARTPOLE, kind=AccelError)


def test_a_policy_of_float_images_gets_floats_though_they_travel_as_bytes(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    wrappers = (f"{HERE}:as_picture", "accel.envs.images:ImageBytes")
    with caplog.at_level("WARNING", "accel"):
        policy = import_policy(module, CARTPOLE.replace(wrapper=wrappers)).policy
    assert "divided by 255" in caplog.text
    picture = torch.randint(0, 256, (3, 1, 2, 2), dtype=torch.uint8)
    torch.testing.assert_close(policy(picture)[0], module(picture / 255.0))
