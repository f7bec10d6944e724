"""Adapts an imported module to our interface: observations in, parameters of the action distribution out."""

from __future__ import annotations

import copy
import logging
import re
import traceback
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from accel.envs.spaces import ACTION_MASK, ActionSpec, EnvSpec
from accel.errors import ConfigError
from accel.imports.torch_modules import CRITICS
from accel.networks.policy import PolicyModule

logger = logging.getLogger("accel")

# standard deviation of actions whose module gives means alone, as a share of half the action's range
_ASSUMED_DEVIATION = 0.1
# Of a log deviation beside the means. Above it may be the deviation itself, which is positive; below it is a value.
_GREATEST_LOG_STD, _LEAST_LOG_STD = 0.0, -20.0
_LOG_STD_LAYER = re.compile(r"log_?std")
_RETURNS = (
    "a policy maps float observations [B, *shape] to logits or Q-values [B, n], or for Box actions to means [B, k], to "
    "[B, 2k] means and log standard deviations, or to a tuple (means, log standard deviations)"
)


class AdaptedPolicy(PolicyModule):
    """An imported policy behind a normaliser.

    Where the module gives means alone, log standard deviations are appended: constants used to measure mismatch (KL,
    ESS). No action depends on them.

    Args:
        module: from [B, *obs] float32 to outputs; images arrive as their 0 to 255 unless ``scales_images``. One with
            ``state_shapes`` takes states after the observations, and gives the next ones after the outputs.
        spec: the environment's layout.
        log_std: [k] of modules that give means; None: a tenth of half the range of each action, of outputs whose tanh
            is taken a tenth.
        normaliser: of the observations.
        scales_images: whether uint8 observations are divided by 255.
    Raises:
        ConfigError: the module cannot be copied, fails on the observations, or gives something else.
    """

    log_std: nn.Parameter | None
    assumes_deviation: bool
    """Whether ``log_std`` is neither the module's nor given."""

    def __init__(
        self,
        module: nn.Module,
        spec: EnvSpec,
        *,
        log_std: Tensor | None = None,
        normaliser: nn.Module | None = None,
        scales_images: bool = False,
    ) -> None:
        super().__init__()
        self.state_shapes = getattr(module, "state_shapes", ())
        states = range(len(self.state_shapes))
        self._parts = len(spec.inputs)
        self.input_names = (*(part.name for part in spec.inputs), *(f"state_{i}" for i in states))
        self.output_names = ("params", *(f"next_state_{i}" for i in states))
        self.normaliser = normaliser
        self.scales_images = scales_images
        self.module = _copied(module)
        self._takes_first = spec.action.kind != "gaussian"
        self.register_parameter("log_std", None)
        self.assumes_deviation = False
        self.eval().requires_grad_(False)
        rows = _example_rows(self, spec)
        if not self._takes_first:
            _require_log_deviations(self, rows, spec.action.sizes[0])
        outputs = _probed(self, rows, spec.observation_dtype)
        if unused := _unused(self, rows):
            logger.warning(
                "%s: its forward does not use %s: where they rescale tanh of the output to the bounds of actions, give "
                "--squash-actions; what else they do is left out",
                type(module).__name__,
                ", ".join(unused),
            )
        if spec.action.kind == "gaussian" and outputs.shape[1] == spec.action.sizes[0]:
            self.assumes_deviation = log_std is None or log_std.numel() != spec.action.sizes[0]
            known = _assumed(spec.action) if log_std is None or self.assumes_deviation else log_std.detach().reshape(-1)
            self.log_std = nn.Parameter(known.to("cpu", torch.float32, copy=True), requires_grad=False)
        elif outputs.shape[1] != spec.action.param_size:
            raise ConfigError(
                f"the policy {type(module).__name__} gives {outputs.shape[1]} numbers for {spec.action.kind} actions "
                f"of sizes {spec.action.sizes}: {_RETURNS}"
            )

    def prepared(self, observations: Tensor) -> Tensor:
        """[B, *obs] to what the module takes: floats, normalised."""
        x = observations
        if observations.dtype == torch.uint8:
            x = observations.to(torch.float32) * (1.0 / 255.0) if self.scales_images else observations.to(torch.float32)
        normalised: Tensor = x if self.normaliser is None else self.normaliser(x)
        return normalised

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each part of the observation [B, *shape] and each state to ([B, P], next states)."""
        observed, states = inputs[: self._parts], inputs[self._parts :]
        masks = [name == ACTION_MASK for name in self.input_names]
        seen = [part if mask else self.prepared(part) for part, mask in zip(observed, masks, strict=False)]
        outputs: object = self.module(*seen, *states)
        following: tuple[Tensor, ...] = ()
        if states:
            outputs, *following = outputs  # type: ignore[misc]
        if isinstance(outputs, tuple | list):
            outputs = outputs[0] if self._takes_first else _means_and_deviations(*outputs)
        if not isinstance(outputs, Tensor):
            raise TypeError(f"it returns {type(outputs).__name__}")
        if self.log_std is not None:
            outputs = torch.cat((outputs, self.log_std.expand_as(outputs)), dim=-1)
        return (outputs, *following)


def _means_and_deviations(means: Tensor, log_std: Tensor, *_others: Tensor) -> Tensor:
    return torch.cat((means, log_std.expand_as(means)), dim=-1)


def _require_log_deviations(policy: AdaptedPolicy, rows: Sequence[Tensor], actions: int) -> None:
    """Raise ConfigError where the second of several outputs may be a value, or deviations themselves."""
    if policy.state_shapes:
        return
    try:
        with torch.no_grad():
            outputs: object = policy.module(*map(policy.prepared, rows))
    except Exception:  # noqa: BLE001 - somebody else's code, whose failure is told with its layer later
        return
    if not isinstance(outputs, tuple | list):
        return
    found: Tensor = outputs[1].to(torch.float32)
    least, greatest = float(found.min()), float(found.max())
    is_named = any(_LOG_STD_LAYER.search(name) for name, _ in policy.module.named_modules())
    if found.shape[-1:] != (actions,):
        cause = f"it has {tuple(found.shape)} numbers for {actions} actions"
    elif is_named:
        return
    elif greatest > _GREATEST_LOG_STD:
        cause = f"it holds {greatest:.3g}, where {_GREATEST_LOG_STD:g} is the greatest logarithm taken"
    elif least < _LEAST_LOG_STD:
        cause = f"it holds {least:.3g}, where {_LEAST_LOG_STD:g} is the least"
    elif actions == 1 and found.dim() == 2 and len(found) == len(rows[0]) and bool((found[0] != found[1]).any()):
        cause = "it depends on the observation, as a value does"
    else:
        return
    raise ConfigError(
        f"the second output of {type(policy.module).__name__} is taken for log standard deviations, and {cause}: "
        "return the means alone, or torch.cat((means, log_std), dim=-1)"
    )


def _copied(module: nn.Module) -> nn.Module:
    """A copy on the CPU in single precision; ConfigError names the layer that cannot be copied."""
    for name, layer in reversed(list(module.named_modules())):
        try:
            copied: nn.Module = copy.deepcopy(layer)
        except Exception as error:
            where = f"layer {name!r} ({type(layer).__name__})" if name else f"the policy {type(layer).__name__}"
            where += "".join(f", for its attribute {key!r}," for key in vars(layer) if not _copies(vars(layer)[key]))
            raise ConfigError(
                f"{where} cannot be copied: {error}; where it computes its weights, as weight_norm and spectral_norm "
                "do, fix them first with torch.nn.utils.remove_weight_norm, remove_spectral_norm, or "
                "parametrize.remove_parametrizations; keep environments, files and locks out of the module"
            ) from error
    if any(isinstance(parameter, UninitializedParameter) for parameter in copied.parameters()):
        raise ConfigError(
            f"the policy {type(module).__name__} has lazy layers without weights: call it once with a batch before, or "
            "load its weights in the factory"
        )
    return copied.to("cpu", torch.float32)


def _copies(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - somebody else's code
        return False
    return True


def _probed(policy: AdaptedPolicy, rows: Sequence[Tensor], dtype: str) -> Tensor:
    """Outputs [2, P] on two different observations."""
    shape, name = tuple(rows[0].shape), type(policy.module).__name__
    try:
        with torch.no_grad():
            outputs: Tensor = policy(*rows)[0]
            alone: Tensor = policy(*(part[:1] for part in rows))[0]
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        remedy = "its weights are taken in single precision: leave out .double()" if "Double" in reason else _RETURNS
        raise ConfigError(
            f"the policy {name} fails{_failing_layer(policy.module, error)} on observations {shape} {dtype}: "
            f"{type(error).__name__}: {reason}; {remedy}"
        ) from error
    for found, count in ((outputs, 2), (alone, 1)):
        if found.dim() != 2 or found.shape[0] != count:
            given = (count, *shape[1:])
            raise ConfigError(f"the policy {name} maps observations {given} to {tuple(found.shape)}: {_RETURNS}")
    if not outputs.isfinite().all():
        raise ConfigError(f"the policy {name} gives numbers that are not finite: give other weights")
    return outputs


def _failing_layer(module: nn.Module, error: Exception) -> str:
    """The innermost layer in whose forward an error was raised; "" where it is the module itself."""
    names = {layer: name for name, layer in module.named_modules() if name}
    callers = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [layer for layer in callers if isinstance(layer, nn.Module) and layer in names]
    if not inside:
        return ""
    layer = inside[-1]
    return f" in layer {names[layer]!r} ({type(layer).__name__ if list(layer.children()) else layer})"


def _unused(policy: AdaptedPolicy, rows: Sequence[Tensor]) -> list[str]:
    """Parts of the module, critics aside, on which none of its outputs depends; [] where that cannot be told."""
    if len(rows) > 1:
        return []
    tensors = {
        name: tensor.clone() for name, tensor in policy.module.state_dict().items() if tensor.is_floating_point()
    }
    for tensor in tensors.values():
        tensor.requires_grad_()
    try:
        with torch.enable_grad():
            found = torch.func.functional_call(policy.module, tensors, (policy.prepared(rows[0]),))
            outputs: Sequence[Tensor] = found if isinstance(found, tuple | list) else [found]
            total = torch.stack([output.sum() for output in outputs]).sum()
            grads: Sequence[Tensor | None] = torch.autograd.grad(total, list(tensors.values()), allow_unused=True)
    except Exception:  # noqa: BLE001 - somebody else's code: what has no gradients, or computes without them
        return []
    used = {name.partition(".")[0] for name, grad in zip(tensors, grads, strict=True) if grad is not None}
    parts = dict.fromkeys(name.partition(".")[0] for name in tensors)
    return [part for part in parts if part not in used and not part.startswith(CRITICS)]


def _example_rows(policy: AdaptedPolicy, spec: EnvSpec) -> list[Tensor]:
    """Two random rows of every input, always the same."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for shape, dtype in [*((p.shape, p.dtype) for p in spec.inputs), *((s, "float32") for s in policy.state_shapes)]:
        if dtype == "uint8":
            rows.append(torch.randint(0, 256, (2, *shape), generator=generator, dtype=torch.uint8))
        else:
            rows.append(torch.randn((2, *shape), generator=generator))
    return rows


def _assumed(action: ActionSpec) -> Tensor:
    """[k] log deviations of actions whose policy gives none."""
    ranges = torch.tensor(action.high) - torch.tensor(action.low)
    is_bounded = torch.isfinite(ranges) & (ranges > 0) & (not action.squash)  # tanh is of numbers about 1
    half = torch.where(is_bounded, ranges / 2, torch.ones_like(ranges))
    return torch.log(half * _ASSUMED_DEVIATION)
