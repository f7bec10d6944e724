"""The options that name a trained policy: a run of ours, a file of somebody else's, or a torch module."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from accel.config import TrainConfig
from accel.errors import ConfigError

if TYPE_CHECKING:
    from accel.runs.trained_policy import TrainedPolicy

CLI = (tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction)
"""How commands with these options are parsed: an option that may be repeated takes one value each time."""

PolicyActivation = Annotated[
    Literal["tanh", "relu", "elu", "leaky_relu", "gelu", "silu"] | None,
    tyro.conf.arg(help="activation function, where the --policy file does not name it"),
]


@dataclass(frozen=True, kw_only=True)
class PolicySource:
    """A trained policy: RUN, or --policy or --module with --env or --observations."""

    run: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(help="run directory of accel train, such as results/NAME")
    ] = None
    which: Annotated[
        Literal["newest", "best"],
        tyro.conf.arg(help="of a run: its newest checkpoint, or the best evaluation with --evaluate-every"),
    ] = "newest"
    module: Annotated[
        str | None,
        tyro.conf.arg(
            help="your own policy: package.module:factory, a torch.nn.Module class or a function that returns one, "
            "such as ppo:Agent of CleanRL; called with the environment's layout if it needs an argument. Maps float "
            "observations [B, *shape] to logits or Q-values, or to means (and log standard deviations) of Box actions"
        ),
    ] = None
    weights: Annotated[
        Path | None,
        tyro.conf.arg(help="state dict for --module: .safetensors, or what torch.save(policy.state_dict(), ...) wrote"),
    ] = None
    policy: Annotated[
        Path | None,
        tyro.conf.arg(
            help="file of a policy that others trained, whose kind is found in its content: what model.save() of "
            "Stable-Baselines3 wrote, ONNX, TorchScript, torch.export, a checkpoint of rsl_rl, or weights of --module; "
            "nothing in it is unpickled",
            aliases=("--sb3",),
        ),
    ] = None
    env: Annotated[
        str | None,
        tyro.conf.arg(help="the imported policy's environment: gymnasium id, or module:id to import the module first"),
    ] = None
    env_arg: Annotated[tuple[str, ...], tyro.conf.arg(help="k=v for its constructor; may be repeated")] = ()
    wrapper: Annotated[
        tuple[str, ...], tyro.conf.arg(help="module:function around each environment; may be repeated")
    ] = ()
    backend: Annotated[
        Literal["gymnasium", "envpool", "pettingzoo"], tyro.conf.arg(help="library that steps environments")
    ] = "gymnasium"
    squash_actions: Annotated[
        bool,
        tyro.conf.arg(help="the environment gets tanh(output) rescaled to its bounds; said by SB3 files"),
    ] = False
    rule: Annotated[
        str,
        tyro.conf.arg(
            help="how an imported policy's outputs become actions: greedy (greatest output, mean), stochastic (sampled "
            "from logits or the Gaussian), or module:factory"
        ),
    ] = "greedy"
    activation: PolicyActivation = None
    normaliser: Annotated[
        Path | None,
        tyro.conf.arg(
            help=".npz, .safetensors or .json file with the mean and var (and clip, epsilon) that observations were "
            "normalised with, such as VecNormalize's; they become part of the graph"
        ),
    ] = None
    observations: Annotated[
        Path | None,
        tyro.conf.arg(
            help=".npz file of recorded observations [N, *shape] in place of --env: quality is then divergence and "
            "agreement on these rows, and returns are not measured"
        ),
    ] = None
    discrete: Annotated[
        bool, tyro.conf.arg(help="with --observations: outputs are logits or Q-values of discrete actions, not means")
    ] = False

    def load(self) -> TrainedPolicy:
        """The policy. Raises ConfigError for options that contradict each other, and what reading it raises."""
        if self.run is None and self.module is None and self.policy is None:
            raise ConfigError("give one policy: a run directory, --policy FILE, or --module package:factory")
        if self.run is not None:
            if self._given:
                raise ConfigError(f"a run brings its own policy and environment: leave out {', '.join(self._given)}")
            from accel.runs.loading import load_run

            return load_run(self.run, which=self.which)
        if self.which != "newest":
            raise ConfigError(f"--which {self.which} is for runs: an imported policy has one set of weights")
        if (self.env is None) == (self.observations is None):
            raise ConfigError(
                "an imported policy needs the environment that it plays, or observations that it met: give --env, such "
                "as CartPole-v1, or --observations FILE.npz, and not both"
            )
        if self.discrete and self.observations is None:
            raise ConfigError("--discrete is for --observations: an environment says what its actions are")
        config = TrainConfig.create(
            **({} if self.env is None else {"env": self.env}),
            env_arg=self.env_arg,
            wrapper=self.wrapper,
            backend=self.backend,
            squash_actions=self.squash_actions,
        )
        if self.module is None and self.weights is not None:
            raise ConfigError("--weights are of a --module: give that too, or --policy for a file that needs none")
        if self.policy is not None and self.weights is not None:
            raise ConfigError("--policy brings its own weights: leave out --weights")
        from accel.imports.policy import import_policy

        words = [
            [name] if value is True else [name, str(value)]
            for name, values in self._given.items()
            for value in (values if isinstance(values, tuple) else (values,))
        ]
        return import_policy(
            self.policy or self.weights,
            config,
            module=self.module,
            activation=self.activation,
            rule=self.rule,
            normaliser=self.normaliser,
            observations=self.observations,
            discrete=self.discrete,
            arguments=tuple(word for pair in words for word in pair),
        )

    @property
    def _given(self) -> dict[str, object]:
        """The options of an imported policy that are not left at their defaults, as they are written."""
        named = {f"--{option.name.replace('_', '-')}": option for option in fields(PolicySource)[2:]}
        values = {name: getattr(self, option.name) for name, option in named.items()}
        return {name: value for name, value in values.items() if value != named[name].default}

    def check_sampling(self, sample: bool) -> None:
        """Raise ConfigError where --sample is given for a policy that is only played greedily."""
        if sample and self.run is None and self.rule == "greedy":
            raise ConfigError("--sample needs outputs that are a distribution: give --rule stochastic too")
