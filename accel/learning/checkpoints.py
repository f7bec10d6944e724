"""A run's checkpoints: written while it trains, where there is something new, and restored to go on from."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import cast

import torch

from accel.acting.joining import SteppedActor
from accel.algorithms.state_tree import Tree
from accel.config.experience import KeptConfig
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError, RunDirectoryError
from accel.experience.stores.base import KeptStore
from accel.learning.learner import Learner
from accel.runs.directory import RunDirectory
from accel.runs.replay_files import ReplayFiles, fingerprint
from accel.system.fork import Fork, start_fork

_OPTIMISER_COPIES = 2  # Adam's moments
_RECORDS_BYTES = 2**20
_REPLAY_ON_DISK = 1.25  # of its memory: pieces of which a part is still needed

logger = logging.getLogger("accel")


class Checkpoints:
    """Those of one run, with its replay where that is saved.

    Args:
        actor: the actor of a run in a single process, whose generators belong to the state; otherwise None.
    """

    def __init__(self, run: RunDirectory, learner: Learner, actor: SteppedActor | None) -> None:
        self._run, self._learner, self._actor = run, learner, actor
        self._saved = self._being_saved = (0, 0)
        self._writer: Fork | None = None
        self._lacks_space = False
        config, options = learner.config, learner.config.store
        self._replay: tuple[ReplayFiles, KeptStore] | None = None
        if isinstance(options, KeptConfig) and options.save_replay:
            shape = fingerprint(
                layout=learner.layout.digest, store=options.model_dump(exclude={"save_replay", "batch_size"}),
                actors=config.acting.actors, n_step=config.algorithm.bootstrap_steps,
                steps=config.algorithm.wants_steps,
            )  # fmt: skip
            self._replay = ReplayFiles(run.path / "replay", shape), cast(KeptStore, learner.store)

    def save_apart(self) -> None:
        """Begin to write a checkpoint in another process, which the end of this one, and its launcher, do not end.

        A launcher may kill its ranks half a second after a signal. The process is a fork, and cannot read a GPU's
        memory; there, and where the system starts no more processes, nothing is begun: ``save`` writes it.
        """
        if self._learner.device.type == "cpu":
            self._writer = start_fork(self._save_sound, keep=self._run.descriptors)
            self._being_saved = self._progress()

    def _save_sound(self) -> None:
        torch.set_num_threads(1)  # A fork has none of the threads that share its parent's work.
        if self._learner.is_sound():
            self._write()

    def save(self) -> None:
        """Write a checkpoint of everything that training goes on from. Raises RunDirectoryError."""
        writer, self._writer = self._writer, None
        is_written = writer is not None and writer.wait() and self._being_saved == self._progress()
        if not is_written:
            self._write()
        self._saved = self._progress()

    def _write(self) -> None:
        state = self._learner.state()
        if self._actor is not None:
            actor = cast(Tree, self._actor.generator_state())
            state = replace(state, counters={**state.counters, "actor_generator": actor})
        if self._replay is not None:
            files, store = self._replay
            try:
                files.save(store, self._moment())
            except OSError as error:
                logger.warning("the replay could not be saved, the one before is kept: %s", error)
        self._run.save_checkpoint(state, keep=self._learner.config.run.keep_checkpoints)
        if self._replay is not None:
            self._replay[0].remove_older()

    def save_new(self) -> None:
        """``save`` where there is something new: environments may be slower than checkpoints, and state is large.

        That a checkpoint does not fit is logged once. Raises RunDirectoryError where the run is gone.
        """
        if self._saved == self._progress():
            return
        try:
            self.save()
        except RunDirectoryError as error:
            self._run.check_exists()
            if not self._lacks_space:
                logger.warning("%s; the run goes on", error)
            self._lacks_space = True
        else:
            if self._lacks_space:
                logger.warning("checkpoints are written again")
            self._lacks_space = False

    def restore(self) -> None:
        """Go on from the run's newest checkpoint.

        Raises:
            CheckpointError: there is none, it is damaged, or of another environment, algorithm or network.
        """
        state, ours = self._run.load_checkpoint(), self._learner.spec
        try:
            spec = EnvSpec.from_json(state.counters["spec"])  # type: ignore[arg-type]
            if spec != ours:
                raise CheckpointError(
                    f"{self._run.path} was trained on an environment with other spaces ({spec.observation_shape} → "
                    f"{spec.action.kind} {spec.action.sizes}): resume with its own --env and wrappers"
                )
            self._learner.restore(state)
            if self._actor is not None and "actor_generator" in state.counters:
                self._actor.set_generator_state(state.counters["actor_generator"])  # type: ignore[arg-type]
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise CheckpointError(f"the checkpoint in {self._run.path} lacks what training needs: {error!r}") from error
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint in {self._run.path} is of another network "
                f"({str(error).splitlines()[-1].strip()}): resume with its own --network and --algorithm"
            ) from None
        self._saved = self._progress()
        if self._replay is not None:
            files, store = self._replay
            try:
                if not files.load(store, self._moment()):
                    logger.info("%s holds no replay: it is filled anew", self._run.path)
            except CheckpointError as error:
                logger.warning("%s: the replay is filled anew", error)

    def check_space(self) -> None:
        """Before training: whether the run's checkpoints and policies will fit. Raises RunDirectoryError."""
        networks = self._learner.algorithm.networks
        weights = sum(tensor.nbytes for tensor in networks.state_dict().values())
        state = sum(value.nbytes for value in networks.parameters()) * _OPTIMISER_COPIES
        keep, existing = self._learner.config.run.keep_checkpoints, len(list(self._run.checkpoints.glob("step-*")))
        missing = max(keep + 1 - existing, 1)  # the new one is whole before the oldest is removed
        replay = 0 if self._replay is None else round(_REPLAY_ON_DISK * self._replay[1].nbytes)
        self._run.check_space(missing * (weights + state) + 2 * weights + _RECORDS_BYTES + replay)

    def _moment(self) -> str:
        return "{:015d}-{:015d}".format(*self._progress())

    def _progress(self) -> tuple[int, int]:
        return self._learner.counters.env_steps, self._learner.counters.updates
