"""Notices while a run trains that it collapses: a policy without entropy whose returns fell, or a critic that explains
nothing.

    policy   H ≤ H_low, R < R_first + (R_best − R_first) / 2 and R_best − R > max(|R_best|, |R|) / 4,
             without a break over 1 % of the run's steps
    critic   explained variance ≤ 0 in 90 % of the records of the last 20 % of the run's steps, and
             R − R_first ≤ max(|R_first|, |R|) / 4

H is the policy's mean entropy, H_low 1 % of a uniform policy's for discrete actions, and for Box actions that of a
Gaussian whose standard deviation is 1 % of half the range. R is the mean return of the last ``stop_window`` episodes,
R_first the first one over ten episodes, R_best the greatest since. The critic is judged by ``LEAST_STEPS`` at least.

Why both conditions have two parts: healthy runs have either part alone. The critic of a healthy run explains nothing
at first (PPO on CartPole-v1: in every record of the first 65,000 steps, while the return rises from 15 to 281), and
nothing again where every state is worth the same; a policy that has learned all has little entropy; and returns of a
policy with entropy dip (CartPole-v1's preset: from 265 to 114 and on to 475, at no less than half of a uniform policy's
entropy). The runs that this was set by are kept in ``results/evidence/collapse``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec
from accel.monitor.line_file import read_lines
from accel.monitor.recorder import STEP_KEY, parse_metrics_line

NEAR_ZERO = 0.01
FALLEN = 0.5
POLICY_SPAN, CRITIC_SPAN = 0.01, 0.2
CRITIC_SHARE = 0.9
LEAST_RECORDS, LEAST_STEPS, LEAST_EPISODES = 10, 20_000, 10
MOVED = 0.25


class CollapseDetector:
    """Looks at the metrics records of one run; says each of its two findings once."""

    def __init__(self, config: TrainConfig, action: ActionSpec) -> None:
        self._config = config
        self._low_entropy = low_entropy(action)
        self._first = self._best = math.nan
        self._episodes = 0.0
        self._low_since: int | None = None
        self._low_records = 0
        self._unexplained: deque[tuple[int, bool]] = deque()
        self.findings: tuple[str, ...] = ()
        self._said: set[str] = set()

    def read(self, path: Path) -> None:
        """Take in the ``metrics.jsonl`` of a resumed run, so that its first returns are those of the whole run.
        Damaged lines are skipped."""
        for record in filter(None, map(parse_metrics_line, read_lines(path))):
            self.observe(int(cast("float", record[STEP_KEY])), record)

    def observe(self, env_steps: int, record: Mapping[str, object]) -> str | None:
        """Take in a record; a sentence with what to try, where it shows a collapse for the first time.

        Args:
            env_steps: learned from so far. record: with ``return_mean``, ``episodes`` and, where the algorithm has
                them, ``entropy`` and ``explained_variance``.
        """
        self._episodes = _number(record.get("episodes"))
        mean = _number(record.get("return_mean"))
        if self._episodes < min(LEAST_EPISODES, self._config.run.stop_window):
            mean = math.nan
        if math.isnan(self._first):
            self._first = self._best = mean
        self._best = max(self._best, mean)
        found = self._policy(env_steps, mean, _number(record.get("entropy")))
        found = found or self._critic(env_steps, mean, _number(record.get("explained_variance")))
        if found:
            self.findings += (found,)
        return found

    def _policy(self, env_steps: int, mean: float, entropy: float) -> str | None:
        fallen = mean < self._first + FALLEN * (self._best - self._first)
        fallen = fallen and self._best - mean > MOVED * max(abs(self._best), abs(mean))
        if not (fallen and entropy <= self._low_entropy):
            self._low_since, self._low_records = None, 0
            return None
        self._low_since = env_steps if self._low_since is None else self._low_since
        self._low_records += 1
        span = POLICY_SPAN * self._config.run.total_env_steps
        if "policy" in self._said or self._low_records < LEAST_RECORDS or env_steps - self._low_since < span:
            return None
        self._said.add("policy")
        return (
            f"the policy has collapsed: after {env_steps:,} environment steps its entropy is {entropy:.2g} nats, and "
            f"the mean return has fallen from {self._best:.4g} to {mean:.4g}. Start anew with {self._policy_advice()}"
        )

    def _critic(self, env_steps: int, mean: float, explained: float) -> str | None:
        if math.isnan(explained) or "critic" in self._said:
            return None
        span = max(CRITIC_SPAN * self._config.run.total_env_steps, LEAST_STEPS)
        records = self._unexplained
        records.append((env_steps, explained <= 0))
        while len(records) > 1 and records[1][0] <= env_steps - span:
            records.popleft()
        if math.isnan(mean) and self._episodes > 0:
            return None  # too few episodes to know whether returns rise
        risen = mean - self._first > MOVED * max(abs(self._first), abs(mean))
        share = sum(low for _, low in records) / len(records)
        if risen or len(records) < LEAST_RECORDS or env_steps - records[0][0] < span or share < CRITIC_SHARE:
            return None
        self._said.add("critic")
        returns = "" if math.isnan(mean) else f", and the mean return has not risen: {self._first:.4g}, now {mean:.4g}"
        return (
            f"the critic explains nothing of the returns: after {env_steps:,} environment steps its explained variance "
            f"has been at or below 0 for {span:,.0f} of them{returns}. Try {self._critic_advice()}"
        )

    def _policy_advice(self) -> str:
        options = self._config.options()
        advice = [f"a lower --learning-rate than {options['learning_rate']:g}"]
        if "entropy_cost" in options:
            advice.append(f"a higher --entropy-cost than {options['entropy_cost']:g}")
        if isinstance(passes := options.get("passes"), int) and passes > 1:
            advice.append(f"fewer --passes than {passes}")
        return f"{' or '.join(advice)}; an earlier checkpoint or --which best has the policy from before"

    def _critic_advice(self) -> str:
        options = self._config.options()
        advice = [
            f"--{name.replace('_', '-')}"
            for name in ("normalise_rewards", "normalise_observations")
            if options.get(name) is False
        ]
        advice += [f"another --learning-rate than {options['learning_rate']:g}"]
        if "unroll_length" in options:
            advice.append(f"longer unrolls than --unroll-length {options['unroll_length']}")
        return ", ".join(advice[:-1]) + f" or {advice[-1]}"


def low_entropy(action: ActionSpec) -> float:
    """Nats; a policy with less has all but stopped to explore."""
    if action.kind != "gaussian":
        return NEAR_ZERO * sum(math.log(size) for size in action.sizes)
    half = [
        (high - low) / 2 if math.isfinite(high - low) and not action.squash else 1.0
        for low, high in zip(action.low, action.high, strict=True)
        if high > low
    ]
    return sum(math.log(NEAR_ZERO * width * math.sqrt(2 * math.pi * math.e)) for width in half)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
