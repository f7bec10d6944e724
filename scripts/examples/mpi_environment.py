"""An environment that is an MPI program: a rod whose cells are shared out among ranks of their own.

    accel train --env scripts.examples.mpi_environment:HeatedRod-v0 --actors 1 --envs-per-actor 1 --total-env-steps 2000

An actor steps its environments in a child process of its rank, which is no rank of the job: mpi4py starts there as a
program of one process, and ``Spawn`` gives the environment ranks of its own, with whom it talks through an
intercommunicator. They end with the environment, or with the actor.
"""

from __future__ import annotations

import os
import sys

import gymnasium
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
RANKS, CELLS, SUBSTEPS = 2, 32, 20
STOP, RESET, STEP = range(3)


class HeatedRod(gymnasium.Env[Floats, Floats]):
    """Keep the middle of a rod at temperature 1 by heating its left end; both ends lose heat."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (8,), np.float32)
    action_space = gymnasium.spaces.Box(0.0, 5.0, (1,), np.float32)

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        if os.geteuid() == 0:  # as in containers; Open MPI's launcher refuses otherwise
            os.environ |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        info = MPI.Info.Create()
        info.Set("map_by", ":oversubscribe")
        self._ranks = MPI.COMM_SELF.Spawn(sys.executable, [__file__], RANKS, info)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Floats, dict[str, object]]:
        """A rod of a random temperature."""
        super().reset(seed=seed)
        return self._ask(RESET, self.np_random.uniform(0.0, 0.5)), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, object]]:
        """Heat for a while."""
        cells = self._ask(STEP, float(action[0]))
        return cells, -float((cells[4] - 1.0) ** 2), False, False, {}

    def close(self) -> None:
        """Let the ranks end."""
        if self._ranks is not None:
            self._command(STOP, 0.0)
            self._ranks.Disconnect()
            self._ranks = None

    def _command(self, what: int, value: float) -> None:
        self._ranks.Bcast(np.array([what, value]), root=self._mpi.ROOT)

    def _ask(self, what: int, value: float) -> Floats:
        """Send a command to all ranks, and gather every fourth cell of theirs."""
        self._command(what, value)
        found = np.empty(8)
        self._ranks.Gather(None, found, root=self._mpi.ROOT)
        return found.astype(np.float32)


def simulate() -> None:
    """One rank: its part of the rod, and the neighbours' ends at every substep."""
    from mpi4py import MPI

    environment, ranks = MPI.Comm.Get_parent(), MPI.COMM_WORLD
    own = CELLS // ranks.size
    left, right = ranks.rank - 1, ranks.rank + 1
    left, right = (MPI.PROC_NULL if r in (-1, ranks.size) else r for r in (left, right))
    rod, command = np.zeros(own + 2), np.zeros(2)
    while True:
        environment.Bcast(command, root=0)
        if command[0] == STOP:
            break
        if command[0] == RESET:
            rod[:] = command[1]
        else:
            for _ in range(SUBSTEPS):
                rod[0] = rod[-1] = 0.0  # what is beyond the ends
                ranks.Sendrecv(rod[1:2], left, recvbuf=rod[-1:], source=right)
                ranks.Sendrecv(rod[-2:-1], right, recvbuf=rod[:1], source=left)
                rod[1:-1] += 0.2 * (rod[:-2] - 2.0 * rod[1:-1] + rod[2:])
                if ranks.rank == 0:
                    rod[1] += 0.1 * command[1]
        environment.Gather(np.ascontiguousarray(rod[1:-1:4]), None, root=0)
    environment.Disconnect()


if __name__ == "__main__":
    simulate()
else:
    gymnasium.register("HeatedRod-v0", entry_point=HeatedRod, max_episode_steps=50)
