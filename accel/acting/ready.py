"""Acting on the environments that are ready, each at its own pace: a row pointer for each in the unrolls. No torch.

Each group of environments (``AsyncEnvironments``) fills its own columns of an unroll, row by row, as its steps end, and
goes on with the next unroll while others still fill theirs, by ``AHEAD`` unrolls at most. An unroll is complete, and
sent, when the slowest has filled it. So steps of unequal time do not add up to the sum of each step's slowest; a group
that is always slower than the others still sets its actor's pace in the end.

The policy runs on the rows that are ready. Every row names the version and scheme that chose its action: one that was
filled ahead has an older version. With ``ahead = 0`` all rows of an unroll have the same one.

Which environments are ready when depends on clocks: equal seeds do not give equal unrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import cast

import numpy as np

from accel.acting.collector import ENV, OVERHEAD, POLICY, Collector
from accel.acting.policy import Array, Bools, Floats, InPlaceSession, SessionPolicy
from accel.acting.priorities import TemporalDifferences
from accel.acting.rules import ActionArray, Sampler
from accel.compressors.runtime import PolicySession
from accel.envs.base import Actions, AsyncEnvironments, EnvFailure
from accel.experience.unroll import Unroll, UnrollLayout
from accel.transport.base import Stopped

AHEAD = 1
_LOOK_S = 0.1


class ReadyPolicy(SessionPolicy):
    """Acts with the newest artifact on any of an actor's rows; the others' recurrent state stays as it is."""

    scheme_id = 0

    def _use(self, session: InPlaceSession) -> None:
        self._sessions = {self._layout.envs: cast(PolicySession, session)}
        self.scheme_id = self._schemes.index(self._sessions[self._layout.envs].artifact.scheme)

    def infer_rows(self, observations: Array, first: Bools, rows: Array, params: Floats) -> None:
        """Run the policy without sampling.

        Args:
            observations: [n, *obs]. first: [n], environments whose episode starts. rows: [n], their numbers.
            params: [B, P], written in place in these rows.
        """
        count = len(rows)
        session = self._sessions.get(count)
        if session is None:
            session = self._sessions[count] = self._sessions[self._layout.envs].with_batch(count)
        for part in self._layout.spec.inputs:
            session.inputs[part.name][...] = part.of_record(observations) if self._is_record else observations
        for i, carried in enumerate(self._carried):
            state = session.inputs[f"state_{i}"]
            state[...] = carried[rows]
            state[first] = 0.0
        session.run()
        params[rows] = session.outputs["params"]
        for i, carried in enumerate(self._carried):
            carried[rows] = session.outputs[f"next_state_{i}"]


class ReadyCollector(Collector):
    """Fills unrolls from environments that are ready at different times.

    Args:
        environment: of this actor, not reset yet.
        ahead: how many unrolls further than the slowest an environment may be.
    """

    _policy: ReadyPolicy

    def __init__(
        self,
        environment: AsyncEnvironments,
        policy: ReadyPolicy,
        sampler: Sampler,
        layout: UnrollLayout,
        priorities: TemporalDifferences | None = None,
        ahead: int = AHEAD,
    ) -> None:
        super().__init__(policy, sampler, layout, priorities)
        self._environment = environment
        self._stages = [layout.view(np.zeros(layout.nbytes, np.uint8)) for _ in range(ahead + 1)]
        spec, envs = layout.spec, layout.envs
        self._rows = list(np.arange(envs).reshape(environment.groups, environment.rows))
        self._params = np.zeros((envs, layout.outputs), np.float32)
        self._actions = cast(ActionArray, np.zeros((envs, *spec.action.shape), spec.action.dtype))
        self._is_first, self._is_step = np.ones(envs, np.bool_), np.ones(envs, np.bool_)
        self._filled = [0] * environment.groups
        self._samples = 0
        self._failed: list[EnvFailure] = []
        environment.reset()
        self._waiting = list(range(environment.groups))

    def collect(self, unroll: Unroll, env_steps: int = 0, is_over: Callable[[], object] | None = None) -> None:
        """Fill every field of the next unroll; see ``Collector.collect``.

        In its timings, the environments' part is the time in which none was ready. Raises Stopped, EnvError.
        """
        start = look_s = perf_counter()
        activity = self._environment.activity.words
        env_s = policy_s = 0.0
        end = (self.unrolls + 1) * self._layout.unroll_length
        while min(self._filled) < end:
            before_policy = perf_counter()
            self._act(env_steps)
            before_env = perf_counter()
            ready = self._environment.receive()
            after_env = perf_counter()
            activity[0] += 1
            policy_s += before_env - before_policy
            env_s += after_env - before_env
            if is_over is not None and after_env >= look_s:
                if is_over():
                    raise Stopped("the run is over")
                look_s = after_env + _LOOK_S
            for group in ready:
                self._take(group)
        stage = self._stages[self.unrolls % len(self._stages)]
        for name, array in stage.arrays.items():
            if name not in ("header", "timings_s"):
                unroll.arrays[name][...] = array
        self._finish(unroll, self._failures_before(end))
        timings = unroll.arrays["timings_s"]
        timings[ENV], timings[POLICY] = env_s, policy_s
        timings[OVERHEAD] = perf_counter() - start - env_s - policy_s

    def _act(self, env_steps: int) -> None:
        """Choose actions for the groups that wait for some and may go on, and send them."""
        length = self._layout.unroll_length
        limit = (self.unrolls + len(self._stages)) * length
        acting = [group for group in self._waiting if self._filled[group] < limit]
        if not acting:
            return
        self._waiting = [group for group in self._waiting if self._filled[group] >= limit]
        for group in acting:
            self._begin_row(group)
        if self._samples % length == 0:
            self._sampler.begin(env_steps)
        rows = np.concatenate([self._rows[group] for group in acting])
        params, actions = self._params, self._actions
        self._policy.infer_rows(self._environment.observations[rows], self._is_first[rows], rows, params)
        # The sampler's noise is laid out for all rows; those that do not act leave theirs unused.
        self._sampler.sample(params, self._samples % length, actions)
        self._samples += 1
        log_prob = self._sampler.log_prob(params, actions)
        for_env = cast(Actions, self._sampler.to_env(actions))
        self._environment.send(acting, for_env[rows])
        for group in acting:
            self._write_actions(group, log_prob)

    def _begin_row(self, group: int) -> None:
        """Write the observation that a group acts on, and its recurrent state where an unroll begins."""
        unroll, t, rows = self._place(group)
        if t == 0:
            self._write_states(unroll, rows)
            if self._stack > 1:
                frames, channels = unroll["frames"], self._layout.frame_shape[0]
                for k in range(self._stack - 1):
                    frames[k, rows] = self._environment.observations[rows, k * channels : (k + 1) * channels]
        self._write_observations(unroll, t, rows)

    def _write_observations(self, unroll: Unroll, t: int, rows: Array) -> None:
        observations = self._environment.observations[rows]
        if self._stack > 1:
            unroll["frames"][self._stack - 1 + t, rows] = observations[:, -self._layout.frame_shape[0] :]
        else:
            unroll["observations"][t, rows] = observations

    def _write_actions(self, group: int, log_prob: Floats) -> None:
        unroll, t, rows = self._place(group)
        arrays = unroll.arrays
        arrays["actions"][t, rows] = self._actions[rows]
        arrays["behaviour_params"][t, rows] = self._params[rows]
        arrays["behaviour_log_prob"][t, rows] = log_prob[rows]
        arrays["policy_version"][t, rows] = self._policy.version
        arrays["scheme_id"][t, rows] = self._policy.scheme_id
        exploration = self._sampler.exploration
        if exploration is not None:
            arrays["exploration"][t, rows] = np.broadcast_to(exploration, len(self._params))[rows]

    def _take(self, group: int) -> None:
        """Write what a group's step gave."""
        unroll, t, rows = self._place(group)
        arrays, environment = unroll.arrays, self._environment
        ends, cuts = environment.terminated[rows], environment.truncated[rows]
        arrays["rewards"][t, rows] = environment.rewards[rows]
        arrays["terminated"][t, rows], arrays["truncated"][t, rows] = ends, cuts
        done = ends | cuts
        if self._same_step:
            arrays["final_observations"][t, rows] = environment.final_observations[rows]
            self._is_first[rows] = done
        else:
            self._is_first[rows] = ~self._is_step[rows]
            self._is_step[rows] = ~done
        self._filled[group] += 1
        if t + 1 == self._layout.unroll_length:
            self._write_observations(unroll, t + 1, rows)
        self._waiting.append(group)

    def _place(self, group: int) -> tuple[Unroll, int, Array]:
        """Where a group is: its unroll, its row there, and its columns."""
        number, t = divmod(self._filled[group], self._layout.unroll_length)
        return self._stages[number % len(self._stages)], t, self._rows[group]

    def _failures_before(self, end: int) -> Sequence[EnvFailure]:
        """Of environments in rows of the unroll that ends there; later ones are kept for theirs."""
        known = self._failed + self._environment.failures
        self._failed = [failure for failure in known if failure.tick > end]
        return [failure for failure in known if failure.tick <= end]
