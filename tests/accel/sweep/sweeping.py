"""A trained run for sweeps to work on, made without training, and small studies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import optuna
import torch
from optuna.distributions import BaseDistribution, FloatDistribution

from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.networks import PolicyNetwork, build_from_config
from accel.sweep.experiment import Experiment, Measurement
from accel.sweep.objectives import AFTER_TRAINING, Metric
from accel.sweep.recovery import GRACE_S
from accel.sweep.search import StudyPlan
from accel.sweep.storage import connected, default_url
from accel.sweep.study import open_study, work
from tests.accel.runs.trained_runs import make_run


def make_balancing_run(directory: Path) -> Path:
    """A CartPole run whose policy pushes the cart the way the pole falls, spread over two hidden layers."""

    def make(config: TrainConfig, spec: EnvSpec) -> PolicyNetwork:
        torch.manual_seed(5)
        network = build_from_config(config.policy, spec)
        first, second = network.torso.layers[0], network.torso.layers[1]
        with torch.no_grad():
            first.weight.copy_(0.3 * torch.randn(32, 4) + torch.tensor([0.0, 0.1, 1.0, 0.5]))
            second.weight.copy_(0.05 * torch.randn(32, 32) + 0.03)
            network.policy_head.weight.copy_(torch.stack([-torch.ones(32), torch.ones(32)]) * 0.2)
            network.policy_head.bias.zero_()
        return network

    small = {"actors": 0, "total_env_steps": 2000, "log_interval_s": 0.05}
    return make_run(directory, make=make, env="CartPole-v1", network="mlp:32x2", **small)


RETURN_AND_BYTES = (AFTER_TRAINING["return"], AFTER_TRAINING["bytes"])


def plan_for(
    directory: Path,
    url: str | None = None,
    objectives: tuple[Metric, ...] = RETURN_AND_BYTES,
    trials: int = 3,
    grace_s: float = GRACE_S,
) -> StudyPlan:
    return StudyPlan(0, "s", url or default_url(directory), objectives, (), trials, grace_s=grace_s)


@contextmanager
def opened(plan: StudyPlan) -> Iterator[optuna.Study]:
    """A study about nothing, in a storage that is closed at the end."""
    with connected(plan.url) as storage:
        yield open_study(plan, storage, {})


def draw(trial: optuna.Trial) -> Measurement:
    """A trial that takes no time: what it draws is what it returns."""
    return Measurement({"return": trial.suggest_float("x", 0, 1), "bytes": 1.0})


class Plain(Experiment):
    """An experiment about nothing, whose trials take no time."""

    metrics, kind, title, references = AFTER_TRAINING, "after training", "plain", {"return": 1.0, "bytes": 2.0}
    space: ClassVar[Mapping[str, BaseDistribution]] = {"x": FloatDistribution(0, 1)}

    def __init__(self, evaluate: Callable[[optuna.Trial], Measurement] = draw) -> None:
        self._evaluate = evaluate

    def subject(self) -> dict[str, object]:
        return {"run": "a"}

    def prepare(self, study: optuna.Study) -> None: ...

    def evaluate(self, trial: optuna.Trial) -> Measurement:
        return self._evaluate(trial)

    def label(self, trial: optuna.trial.FrozenTrial) -> str:
        return str(trial.params)

    def how_measured(self) -> str:
        return ""


def work_on(study: optuna.Study, plan: StudyPlan, evaluate: Callable[[optuna.Trial], Measurement] = draw) -> None:
    """Run the trials that are missing."""
    work(study, plan, Plain(evaluate))


@contextmanager
def worker(*arguments: object, manner: str | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """``accel sweep`` in a process of its own, its messages on standard error; none is left behind.

    Args:
        arguments: of the command.
        manner: see ``tests.accel.sweep.sweep_worker``.
        environment: added to this process's.
    """
    program = ["accel", "sweep"] if manner is None else ["tests.accel.sweep.sweep_worker", manner]
    command = [sys.executable, "-m", *program, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment}) as process:
        try:
            yield process
        finally:
            process.kill()


def trials_of(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    """Every trial of a study."""
    with connected(url) as storage:
        return storage.get_all_trials(storage.get_study_id_from_name(name))
