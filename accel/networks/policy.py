"""The whole network: what the learner trains, and the part of it that acts.

The observation normaliser and the scaling of uint8 images are inside the acting module, and the recurrent state is an
input and an output of it: an exported policy cannot lose them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from accel.envs.spaces import ACTION_MASK, EnvSpec
from accel.networks import dense
from accel.networks.core import RecurrentCore
from accel.networks.fake_quantisation import PolicyParts, QuantisedParts
from accel.networks.heads import GaussianHead, in_single_precision, make_policy_head, value_head
from accel.networks.normaliser import ObservationNormaliser
from accel.networks.observations import DictNormaliser, Parts, mask_outputs, split_observations
from accel.networks.torsos import MLPTorso, train_features
from accel.networks.towers import PolicyTowers, Pull

if TYPE_CHECKING:
    from accel.compressors.qat.fake_quantiser import FakeQuantiser

Critic = Literal["value", "action-value", "none"]


class NetworkOutput(NamedTuple):
    """What a forward pass gives.

    Attributes:
        params: [T, B, P] distribution parameters.
        values: [T, B] state values; None with an action-value critic, or without one.
        action_values: [T, B, n] with an action-value critic, otherwise None.
        state: recurrent state after the last row, a tuple of [B, H]; empty without a core.
    """

    params: Tensor
    values: Tensor | None
    action_values: Tensor | None
    state: tuple[Tensor, ...]


Differentiator = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[NetworkOutput, Pull]]


class PolicyNetwork(nn.Module):
    """Normaliser → torso → core → policy head and critic head, trained together.

    Args:
        spec: the environment's layout.
        torso: [N, *obs] float to [N, features]; of a Dict observation, a dictionary of its parts to [N, features].
        features: size of the torso's output.
        value_torso: the critic's own torso, with an output of the same size; None: it shares the policy's features.
        core: behind the torso; None for no recurrence.
        outputs: P of the policy head; None: the action distribution's parameters.
        normalise_observations: whether observations pass through an ``ObservationNormaliser``.
        critic: state values, values of each categorical action, or none.
        initial_log_std: of Gaussian actions.
        channels_last: the torso runs faster on images in that memory format, and takes it.
    Attributes:
        state_shapes: shapes of one environment's recurrent state: (), ((H,),) or ((H,), (H,)).
        normaliser: None where observations are not normalised.
        fake_quantisation: follows the plan that publishes the acting module, and makes ``forward``, never that module,
            compute the policy side as its int8 graph does; None for single precision.
    """

    def __init__(
        self,
        spec: EnvSpec,
        torso: nn.Module,
        features: int,
        *,
        value_torso: nn.Module | None = None,
        core: RecurrentCore | None = None,
        outputs: int | None = None,
        normalise_observations: bool = False,
        critic: Critic = "value",
        initial_log_std: float = 0.0,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.critic = critic
        self.fake_quantisation: FakeQuantiser | None = None
        self.channels_last = channels_last
        self.normaliser: ObservationNormaliser | None = None
        if normalise_observations:
            self.normaliser = DictNormaliser(spec) if spec.parts else ObservationNormaliser(spec.observation_shape)
        self.torso = torso
        self.core = RecurrentCore(features) if core is None else core
        self.state_shapes = self.core.state_shapes
        size = self.core.size
        self.policy_head = (
            make_policy_head(spec.action, size, initial_log_std) if outputs is None else value_head(size, outputs)
        )
        self.value_torso = value_torso
        self.critic_head = (
            None if critic == "none" else value_head(size, spec.action.sizes[0] if critic == "action-value" else 1)
        )

    def forward(self, observations: Tensor, first: Tensor, state: tuple[Tensor, ...] = ()) -> NetworkOutput:
        """A whole unroll, time folded into the batch everywhere but in the core; heads in float32 under autocast too.

        Args:
            observations: [T, B, *obs] uint8 or float.
            first: [T, B] bool, rows that begin an episode: the recurrent state is zeroed before them. On the host, or
                a core on a GPU waits for it.
            state: recurrent state before row 0, a tuple of [B, H]; empty without a core.
        Raises:
            ValueError: the state does not have as many parts as the network.
        """
        length, batch = first.shape
        if len(state) != len(self.state_shapes):
            raise ValueError(
                f"the network has {len(self.state_shapes)} parts of recurrent state and got {len(state)}: "
                "start from zeros of state_shapes, or from the state stored with the unroll"
            )
        inputs = split_observations(self.spec, observations.flatten(0, 1))
        x = _prepare_all(self.spec, inputs, self.normaliser, self.channels_last)
        parts = PolicyParts(self.torso, self.policy_head)
        if self.fake_quantisation is not None:
            started = self.fake_quantisation.start(dict(self.named_parameters()))
            parts = QuantisedParts(self.torso, self.policy_head, started)
        features = parts.torso(x)
        if self.state_shapes:
            sequence, state = parts.core(self.core, features.view(length, batch, -1), first, state)
            features = sequence.flatten(0, 1)
        outputs = parts.head(features)
        if self.spec.action.masked:
            outputs = mask_outputs(outputs, inputs[ACTION_MASK])
        predictions = None
        if self.critic_head is not None:
            critic_features = features if self.value_torso is None else train_features(self.value_torso, x)
            predictions = in_single_precision(self.critic_head, critic_features)
        return self._output(outputs, predictions, state, length)

    def _output(
        self, params: Tensor, predictions: Tensor | None, state: tuple[Tensor, ...], length: int
    ) -> NetworkOutput:
        """Of rows, time folded into the batch."""
        params = params.view(length, -1, params.shape[-1])
        if predictions is None:
            return NetworkOutput(params, None, None, state)
        if self.critic == "action-value":
            return NetworkOutput(params, None, predictions.view(length, -1, predictions.shape[-1]), state)
        return NetworkOutput(params, predictions.view(length, -1), None, state)

    def act(self, observations: Tensor) -> Tensor:
        """The policy side of ``forward`` alone, without a recurrent core: observations [N, *obs] to [N, P]."""
        inputs = split_observations(self.spec, observations)
        parts = PolicyParts(self.torso, self.policy_head)
        return parts.head(parts.torso(_prepare_all(self.spec, inputs, self.normaliser, self.channels_last)))

    def differentiator(self) -> Differentiator:
        """``forward`` without a graph, and its way back, by hand where that is quicker.

        Returns:
            A function of ``forward``'s arguments that gives its output, and one to be called once at most, with the
            gradients of ``params`` and of the predictions [T, B, …] (None without a critic), under ``torch.no_grad``.
            The parameters' own gradients must be zero then, and parameters and gradients stay where they are.
        """
        torso, value_torso, critic = self.torso, self.value_torso, self.critic_head
        if (
            isinstance(torso, MLPTorso)
            and dense.by_hand(torso.activation)
            and (value_torso is None or isinstance(value_torso, MLPTorso))
            and isinstance(self.policy_head, nn.Linear | GaussianHead)
            and not (self.state_shapes or self.spec.parts or self.spec.action.masked)
        ):
            return partial(self._run_towers, PolicyTowers(torso, value_torso, self.policy_head, critic))
        return self._run_graph

    def _run_graph(
        self, observations: Tensor, first: Tensor, state: tuple[Tensor, ...] = ()
    ) -> tuple[NetworkOutput, Pull]:
        with torch.enable_grad():
            output = self(observations, first, state)
        predictions = output.values if output.action_values is None else output.action_values

        def pull(of_params: Tensor, of_predictions: Tensor | None) -> None:
            outputs, gradients = [output.params], [of_params]
            if predictions is not None and of_predictions is not None:
                outputs, gradients = [*outputs, predictions], [*gradients, of_predictions]
            torch.autograd.backward(outputs, [g.to(out.dtype) for g, out in zip(gradients, outputs, strict=True)])

        values, action_values = (None if part is None else part.detach() for part in output[1:3])
        return NetworkOutput(output.params.detach(), values, action_values, output.state), pull

    @torch.no_grad()
    def _run_towers(
        self, towers: PolicyTowers, observations: Tensor, first: Tensor, state: tuple[Tensor, ...] = ()
    ) -> tuple[NetworkOutput, Pull]:
        if self.fake_quantisation is not None or not dense.suits(observations):
            return self._run_graph(observations, first, state)
        x = _prepare(observations.flatten(0, 1), self.normaliser, self.channels_last)
        params, predictions, pull = towers.run(x)

        def pull_rows(of_params: Tensor, of_predictions: Tensor | None) -> None:
            of_rows = None if of_predictions is None else of_predictions.reshape(len(x), -1)
            pull(of_params.flatten(0, 1), of_rows)

        return self._output(params, predictions, (), len(first)), pull_rows

    def follow(self, trained: PolicyNetwork, *, copy_weights: bool) -> None:
        """Serve as a trained network's target: compute as it does, and copy its weights where their turn has come.

        Weights trained with rounding are those of a policy only when rounded; at few bits they are another one without.
        """
        self.fake_quantisation = trained.fake_quantisation
        if copy_weights:
            self.load_state_dict(trained.state_dict())

    def acting_module(self) -> ActingModule:
        """One step of the policy side, sharing this network's parameters, buffers and submodules."""
        return ActingModule(self)


class PolicyModule(nn.Module):
    """A policy that acts: observations [B, *obs] and state to a tuple of outputs [B, P] and the next state.

    A Dict observation is one argument for each of its parts, the action mask last, before the state.

    Attributes:
        input_names: names of ``forward``'s arguments, in order.
        output_names: names of the tensors in the tuple that it returns.
        state_shapes: shapes of one environment's recurrent state.
        normaliser: what float observations pass through first; None where nothing does.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    state_shapes: tuple[tuple[int, ...], ...]
    normaliser: nn.Module | None


class ActingModule(PolicyModule):
    """The subgraph that acts: observations and state to distribution parameters and the next state, see PolicyModule.

    The caller zeroes the state of environments that begin an episode. Raw observations go in: normalisation, or the
    scaling of uint8 images to [0, 1], is inside. Exports with ``torch.onnx.export(dynamo=False)``.
    """

    def __init__(self, network: PolicyNetwork) -> None:
        super().__init__()
        self.state_shapes = network.state_shapes
        parts = range(len(network.state_shapes))
        self.spec = network.spec
        self._observed = tuple(part.name for part in network.spec.inputs)
        self.input_names = (*self._observed, *(f"state_{i}" for i in parts))
        self.output_names = ("params", *(f"next_state_{i}" for i in parts))
        self.normaliser = network.normaliser
        self.torso = network.torso
        self.core = network.core
        self.policy_head = network.policy_head

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each part of the observation [B, *shape] and each [B, H] to (params [B, P], *next state each [B, H])."""
        observed, state = inputs[: len(self._observed)], inputs[len(self._observed) :]
        parts = dict(zip(self._observed, observed, strict=True))
        features = self.torso(_prepare_all(self.spec, parts, self.normaliser, channels_last=False))
        features, state = self.core.step(features, state)
        outputs = self.policy_head(features)
        if self.spec.action.masked:
            outputs = mask_outputs(outputs, parts[ACTION_MASK])
        return (outputs, *state)


def _prepare_all(spec: EnvSpec, inputs: Parts, normaliser: nn.Module | None, channels_last: bool) -> Tensor | Parts:
    """What the torso takes: the observations, or of a Dict the dictionary of its parts without the action mask."""
    if not spec.parts:
        return _prepare(inputs["observations"], normaliser, channels_last)
    parts = {name: part for name, part in inputs.items() if name != ACTION_MASK}  # it acts behind the head
    if normaliser is not None:
        parts = normaliser(parts)
    return {name: _prepare(part, None, channels_last) for name, part in parts.items()}


def _prepare(observations: Tensor, normaliser: nn.Module | None, channels_last: bool) -> Tensor:
    """[N, *obs]: uint8 to float in [0, 1]; floats normalised where there is a normaliser."""
    if observations.dtype == torch.uint8:
        if channels_last:
            device = observations.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
            return observations.to(dtype, memory_format=torch.channels_last).mul_(1.0 / 255.0)
        return observations.to(torch.float32) * (1.0 / 255.0)
    if normaliser is not None:
        normalised: Tensor = normaliser(observations)
        return normalised
    return observations
