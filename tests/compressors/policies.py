"""Small policies of every kind, with random weights, normaliser statistics and inputs to match."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.graph.policy_graph import export_policy
from accel.compressors.layer_inventory import PolicyLayer, policy_layers, prunable_units
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import Plan
from accel.compressors.runtime import PolicySession

torch.set_num_threads(1)

T = TypeVar("T")
Inputs = Mapping[str, NDArray[np.generic]]


class Normaliser(nn.Module):
    """clamp((x - mean) / sqrt(var), -10, 10), the reciprocal root computed from a buffer inside the graph."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp((x - self.mean) * torch.rsqrt(self.var + 1e-8), -10.0, 10.0)


class MLP(nn.Module):
    """Normaliser, torso, and a Gaussian or categorical head."""

    def __init__(
        self, activation: Callable[[], nn.Module] = nn.Tanh, width: int = 32, depth: int = 2, gaussian: bool = True
    ) -> None:
        super().__init__()
        self.normaliser = Normaliser(11)
        sizes = [11] + [width] * depth
        layers = [m for i, o in itertools.pairwise(sizes) for m in (nn.Linear(i, o), activation())]
        self.torso = nn.Sequential(*layers)
        self.head = nn.Linear(width, 3)
        self.log_std = nn.Parameter(torch.zeros(3)) if gaussian else None

    def forward(self, observations: Tensor) -> Tensor:
        mean = self.head(self.torso(self.normaliser(observations)))
        return mean if self.log_std is None else torch.cat([mean, self.log_std.expand_as(mean)], -1)


class NatureCNN(nn.Module):
    """Three strided convolutions and two linear layers over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.torso = nn.Sequential(
            nn.Conv2d(2, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 4, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, 5)

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.torso(observations.float() / 255.0))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, 1, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.relu(self.a(torch.relu(x))))


class ResNet(nn.Module):
    """An IMPALA-ResNet with two small sections."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for i, o in ((2, 16), (16, 32)):
            blocks += [nn.Conv2d(i, o, 3, 1, 1), nn.MaxPool2d(3, 2, 1), Residual(o), Residual(o)]
        self.torso = nn.Sequential(*blocks, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 25, 48), nn.ReLU())
        self.head = nn.Linear(48, 5)

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.torso(observations.float() * (1.0 / 255.0)))


class Recurrent(nn.Module):
    """Torso, one LSTM step by either of torch's modules, head; returns the parameters and the next state."""

    def __init__(self, cell: bool) -> None:
        super().__init__()
        self.normaliser = Normaliser(11)
        self.torso = nn.Sequential(nn.Linear(11, 32), nn.Tanh())
        self.is_cell = cell
        self.core = nn.LSTMCell(32, 24) if cell else nn.LSTM(32, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, observations: Tensor, state_0: Tensor, state_1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.torso(self.normaliser(observations))
        if self.is_cell:
            h, c = self.core(features, (state_0, state_1))
        else:
            _, (h, c) = self.core(features[None], (state_0[None], state_1[None]))
            h, c = h[0], c[0]
        return self.head(h), h, c


@dataclass(frozen=True)
class Case:
    """A kind of policy: how to make one, the shapes of its inputs, the names of its outputs."""

    make: Callable[[], nn.Module]
    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...] = ("params",)

    def inputs(self, rows: int, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Random inputs: bytes for images, standard normal otherwise, states within ±1."""
        rng = np.random.default_rng(seed)
        made: dict[str, NDArray[np.generic]] = {}
        for name, shape in self.shapes.items():
            if len(shape) == 3:
                made[name] = rng.integers(0, 256, (rows, *shape)).astype(np.uint8)
            else:
                values = rng.standard_normal((rows, *shape)).astype(np.float32)
                made[name] = np.tanh(values) if name.startswith("state") else values
        return made

    def examples(self) -> dict[str, Tensor]:
        """Two rows as tensors."""
        return {name: torch.from_numpy(array) for name, array in self.inputs(2).items()}

    def layers(self, module: nn.Module) -> tuple[PolicyLayer, ...]:
        """The inventory of a module of this case."""
        examples = self.examples()
        return policy_layers(export_policy(module, examples, self.outputs), module, prunable_units(module, examples))

    def bind(self, scheme: str, module: nn.Module, rows: int = 128) -> Plan:
        """A plan calibrated on that many random inputs, on none if 0."""
        calibration = self.inputs(rows, seed=1) if rows else None
        return make_compressor(scheme).bind(module, self.examples(), calibration, output_names=self.outputs)


_VECTOR = {"observations": (11,)}
_IMAGE = {"observations": (2, 44, 44)}
_SMALL_IMAGE = {"observations": (2, 20, 20)}
_STATEFUL = {"observations": (11,), "state_0": (24,), "state_1": (24,)}
_THREE = ("params", "next_state_0", "next_state_1")

CASES: dict[str, Case] = {
    "tanh-mlp": Case(MLP, _VECTOR),
    "relu-mlp": Case(lambda: MLP(nn.ReLU, gaussian=False), _VECTOR),
    "deep-relu-mlp": Case(lambda: MLP(nn.ReLU, depth=4), _VECTOR),
    "nature-cnn": Case(NatureCNN, _IMAGE),
    "resnet": Case(ResNet, _SMALL_IMAGE),
    "lstm-cell": Case(lambda: Recurrent(cell=True), _STATEFUL, _THREE),
    "lstm": Case(lambda: Recurrent(cell=False), _STATEFUL, _THREE),
}


def randomise(module: nn.Module, seed: int) -> nn.Module:
    """New random weights, biases and normaliser statistics, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 25
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.4 / fan_in**0.5)
        for buffer in module.buffers():
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module


def made(name: str, seed: int = 0) -> tuple[Case, nn.Module]:
    """A case, and a module of it with random weights."""
    case = CASES[name]
    return case, randomise(case.make(), seed)


def bound(name: str, scheme: str, seed: int = 0, rows: int = 128) -> tuple[Case, nn.Module, Plan]:
    """As ``made``, with the module's plan, calibrated on that many random inputs."""
    case, module = made(name, seed)
    return case, module, case.bind(scheme, module, rows)


def refreshed(name: str, scheme: str, seed: int = 0, rows: int = 128) -> tuple[Case, nn.Module, CompressedPolicy]:
    """As ``bound``, with the plan's first artifact in its place."""
    case, module, plan = bound(name, scheme, seed, rows)
    return case, module, plan.refresh(module, version=1)


def applied(plan: Plan, module: nn.Module, change: Callable[..., T], *arguments: object) -> T:
    """What a method of an update returns, which is then committed."""
    update = plan.begin_update(module)
    found = change(update, *arguments)
    update.commit()
    return found


def student(size: str, policy: nn.Module) -> nn.Module:
    """Of a width and a depth, with the policy's normaliser: what a distilled scheme is told to make."""
    width, depth = map(int, size.split("x"))
    torch.manual_seed(0)
    made = MLP(width=width, depth=depth)
    made.normaliser = policy.normaliser
    return made


def divergence(student: Tensor, policy: Tensor) -> Tensor:
    """Of a student's outputs from the policy's."""
    return (student - policy).square().mean()


def run_module(module: nn.Module, inputs: Inputs) -> list[NDArray[np.float32]]:
    """The module's outputs as arrays."""
    with torch.no_grad():
        result = module(*(torch.from_numpy(array) for array in inputs.values()))
    return [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]


def run_artifact(artifact: CompressedPolicy, inputs: Inputs) -> list[NDArray[np.float32]]:
    """A session's outputs as arrays, copied."""
    session = PolicySession(artifact, batch=len(next(iter(inputs.values()))))
    for name, array in inputs.items():
        session.inputs[name][...] = array
    session.run()
    return [np.array(session.outputs[spec.name], dtype=np.float32) for spec in artifact.outputs]


def relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Root mean square difference over the root mean square of what was wanted."""
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))


def error_of(artifact: CompressedPolicy, module: nn.Module, inputs: Inputs) -> float:
    """The greatest relative error of an output, beside the module's own."""
    outputs = zip(run_artifact(artifact, inputs), run_module(module, inputs), strict=True)
    return max(relative_error(found, wanted) for found, wanted in outputs)


def assert_acts_as(
    module: nn.Module, artifact: CompressedPolicy, inputs: Inputs, *, atol: float = 1e-5, rtol: float = 1e-7
) -> None:
    for found, wanted in zip(run_artifact(artifact, inputs), run_module(module, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, atol=atol, rtol=rtol)


def assert_refresh_is_exact(case: Case) -> None:
    """A plan of one binding answers as the module does, for other weights and numbers of rows."""
    module = randomise(case.make(), seed=0)
    plan = case.bind("fp32", module)
    for seed, rows in ((1, 1), (2, 3), (3, 8)):
        randomise(module, seed)
        assert_acts_as(module, plan.refresh(module, version=seed), case.inputs(rows, seed), atol=2e-5, rtol=1e-4)
