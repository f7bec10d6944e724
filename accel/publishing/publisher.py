"""From the learner's network to the actors' policies: bind, calibrate, compress, validate, publish.

Artifacts are sent whole and uncompressed. Float32 weights hardly compress. Differences of integer codes compress well,
but encoding and decoding them takes longer than sending the codes over shared memory or a cluster's network, and as
actors skip versions, the learner would have to track each actor's.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import cast

import torch

from accel.acting.torch_policy import serialise_module
from accel.algorithms.distributions import PolicyDivergence
from accel.compressors.artifact import CompressedPolicy, Json
from accel.compressors.checks.faithful import check_faithful
from accel.compressors.errors import CompressorError, GraphError, VerificationError
from accel.compressors.pipeline import make_compressor
from accel.compressors.qat.fake_quantiser import FakeQuantiser, is_quantisation_aware
from accel.compressors.scheme import parse_scheme
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.experience.unroll import Unroll, UnrollLayout
from accel.networks import PolicyNetwork
from accel.networks.observations import example_inputs
from accel.publishing.background import BackgroundWorker, Snapshot
from accel.publishing.distillation import StudentFactory
from accel.publishing.inputs import REFILLS, Array, RecentInputs, policy_inputs, replay_states, rows_within
from accel.publishing.level import FULL_PRECISION, INTERVALS, Intervals, Level, distillation_schedule, interval_updates
from accel.publishing.validation import ValidationInputs, Validator

CLOSE_TIMEOUT_S = 0.2
IMAGE_RENEWAL_UPDATES = 8

logger = logging.getLogger("accel")


class NoPublisher:
    """No-op publisher, of a learner whose policies learner 0 publishes."""

    scheme = ""

    beside = preparing = False

    def __init__(self) -> None:
        self._begun: list[int] = []

    def begin(self, version: int) -> bool:
        """Publishes nothing."""
        self._begun = [version]
        return True

    def prepared(self, *, wait: bool = False) -> tuple[int, bytes | None] | None:
        """Nothing, at once."""
        return (self._begun.pop(), None) if self._begun else None

    def observe(self, unroll: Unroll, layout: UnrollLayout) -> None:
        """Calibrates nothing."""

    def after_update(self) -> None:
        """Begins no work."""

    def metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}


class Publisher:
    """Compresses the network's acting part at the level in use.

    A level is a scheme that policies may be published in. An artifact carries its own scheme: until
    ``calibration_size`` real observations have been seen, a level's artifact is ``fp32``, as ranges need real
    observations. Every artifact is validated (``accel.publishing.validation``); a bad one is withheld, logged once per
    cause and counted, and ``fp32`` stands in for it until one passes again, so that no scheme ruins a run. With the
    torch runtime the weights are published as they are, as long as they are finite.

    Students' training steps, selections of channels and bases, and later calibrations are done in the background
    (``accel.publishing.background``). With ``actors = 0`` all of it is done at once, so that equal seeds give equal
    bits.

    ``begin`` and ``prepared`` prepare a publication of a snapshot beside the learner's next update. Until it is there,
    updates are counted and rows of one unroll put aside, which the next ``begin`` makes up for; every other method
    waits for it.

    Args:
        divergence: of acting policies from the learner's, as the action rule sees it; None: KL of the distributions.
        cpu_features: features of every actor's CPU, which select the int8 variant; None: this machine's.
        levels: schemes that may be used; None: the configured one. The first is in use until ``use``.
        beside: prepare publications beside the caller, which pays where the learner computes on a device of its own;
            not with ``qat``, whose codes are the learner's own.
    Attributes:
        beside: whether publications are prepared beside the caller.
        scheme: of the last publication: the level in use, or fp32 while that is not published.
    Raises:
        ConfigError: the first level does not suit the network, or its graph differs from it.
    """

    def __init__(
        self,
        config: TrainConfig,
        network: PolicyNetwork,
        *,
        divergence: PolicyDivergence | None = None,
        cpu_features: frozenset[str] | None = None,
        levels: Iterable[str] | None = None,
        beside: bool = False,
        intervals: Intervals = INTERVALS,
    ) -> None:
        self._config, self._intervals = config, intervals
        self._network = network
        self._cpu = cpu_features
        self._module = network.acting_module()
        self._metadata: dict[str, Json] = {
            "action": cast("Json", network.spec.action.to_json()),
            "env": config.environment.env,
            "network": config.policy.network,
        }
        self.levels = tuple(dict.fromkeys(_canonical(s) for s in (levels or (config.compression.compressor,))))
        kept = rows_within(config.compression.calibration_size, network.spec)
        self._recent = RecentInputs(kept, self._renewal_updates(), config.run.seed)
        self._validation_inputs = ValidationInputs(network.spec, network.state_shapes, self._recent)
        self._divergence = PolicyDivergence(network.spec.action) if divergence is None else divergence
        self._bound: dict[str, Level] = {}
        self._in_use = ""
        self._prepared: tuple[str, ...] = ()
        self._worker, self._caller = BackgroundWorker(inline=config.acting.actors == 0), BackgroundWorker(inline=True)
        self._copy: Snapshot | None = None
        self.beside = beside and not any(map(is_quantisation_aware, self.levels))
        self._snapshot = Snapshot(self._module) if self.beside else None
        self._published = self._module if self._snapshot is None else self._snapshot.module
        self._preparer = BackgroundWorker(inline=not self.beside, niceness=0)
        self._preparing: Future[bytes | None] | None = None
        self._version = self._late_updates = 0
        self._late_inputs: dict[str, Array] = {}
        self._last_served = FULL_PRECISION
        self._proved_on_real_rows = self._has_published = False
        self.scheme = FULL_PRECISION
        if config.acting.actor_runtime != "torch":
            self._level(FULL_PRECISION)
            self._prove()
            self.use(self.levels[0])

    @property
    def schemes(self) -> tuple[str, ...]:
        """Every scheme that unrolls of this run may have acted with; its index is the unrolls' scheme id."""
        return tuple(dict.fromkeys((FULL_PRECISION, *self.levels)))

    def use(self, level: str, prepare: Iterable[str] = ()) -> None:
        """Publish this level from the next publication on. Each is bound once, which takes 30 to 400 ms, and kept; its
        validation session is closed while it is out of use.
        ``prepare``: levels to prepare in the background if they are not ready.

        Raises ConfigError: one is none of ``levels``, or does not suit the network; nothing changes then.
        """
        self._wait()
        before, known = self._in_use, (self._in_use, *self._prepared)
        wanted, *prepared = dict.fromkeys(map(_canonical, (level, *prepare)))
        if unknown := [scheme for scheme in (wanted, *prepared) if scheme not in self.schemes]:
            raise ConfigError(f"levels '{', '.join(unknown)}' are none of {', '.join(self.schemes)}")
        for scheme in (wanted, *prepared):
            self._level(scheme)
        for scheme in (wanted, *prepared):
            if scheme not in ((before,) if scheme == wanted else known):
                self._bound[scheme].enter_use()
        if before and before != wanted:
            self._bound[before].leave_use()
        self._in_use, self._prepared = wanted, tuple(prepared)
        self._start_work()
        self._round_learner()

    def suitable(self, levels: Iterable[str]) -> tuple[str, ...]:
        """Those of the levels that suit the network, bound; each other one is named in a warning.

        Raises: ConfigError: the first does not suit."""
        self._wait()
        first, *others = levels
        self._level(_canonical(first))
        found = [first]
        for level in others:
            try:
                self._level(_canonical(level))
                found.append(level)
            except ConfigError as error:
                logger.warning("%s is not used: %s", level, error)
        return tuple(found)

    @property
    def busy(self) -> bool:
        """Whether background work is in progress; its result is adopted by the next update or publication."""
        return self._worker.busy

    def offers(self, level: str) -> bool:
        """Whether this level is published while it is in use, rather than fp32.

        For a level out of use: whether they would get it if its next check passes."""
        self._wait()
        return level in self._bound and self._bound[level].fit

    def check_ranges(self, level: str) -> None:
        """Have a level's activations outside their ranges widen them, in the background."""
        self._wait()
        self._bound[level].check_ranges()
        self._start_work()

    def observe(self, unroll: Unroll, layout: UnrollLayout) -> None:
        """Keep a few of an arriving unroll's inputs, for ranges, checks and students."""
        if self._config.acting.actor_runtime == "torch" or self._late_inputs or not self._recent.wanted:
            return
        # An unroll has the states of one row; until the store is full others are found anew, lest int8 wait for long.
        replay = partial(replay_states, self._module) if layout.state_shapes and not self._recent.full else None
        inputs = policy_inputs(unroll, layout, self._recent.choose, replay)
        if self.preparing:
            self._late_inputs = inputs
        else:
            self._recent.observe(inputs)

    def after_update(self) -> None:
        """Count a learner update and begin what is due at the level in use, and at those to prepare.

        Errors of background work are raised here or by ``prepared``.
        """
        if self._config.acting.actor_runtime == "torch":
            return
        self._late_updates += 1
        if not self.preparing:
            self._catch_up()

    def _catch_up(self) -> None:
        """Take in what came while a publication was prepared."""
        if self._late_inputs:
            self._recent.observe(self._late_inputs)
            self._late_inputs = {}
        while self._late_updates:
            self._late_updates -= 1
            self._recent.tick()
            self._adopt_results()
            for scheme in self._maintained():
                self._bound[scheme].after_update()
            if self._in_use != FULL_PRECISION:
                self._bound[FULL_PRECISION].after_update()
            self._start_work()

    def recent_inputs(self) -> dict[str, Array]:
        """Real inputs of the policy, [N, *shape] by name; empty before the first."""
        self._wait()
        return self._recent.every()

    @property
    def preparing(self) -> bool:
        """Whether a publication is in preparation and not there yet."""
        return self._preparing is not None and not self._preparing.done()

    def begin(self, version: int) -> bool:
        """Begin to prepare the publication of the current network; False while another is not taken yet."""
        if self._preparing is not None:
            return False
        self._catch_up()
        if self._snapshot is not None:
            self._snapshot.take()
        self._version, self._preparing = version, self._preparer.submit(self._prepare)
        return True

    def prepared(self, *, wait: bool = False) -> tuple[int, bytes | None] | None:
        """Take the publication that was begun, with its version, once it is there; ``wait``: until it is.

        Transports carry the version beside the payload, so that an unchanged policy is recognised: artifacts travel as
        version 0 and only saved ones hold their own. The payload is None where everything is withheld.

        Raises its errors, those of background work, and ConfigError where the first of a run is withheld."""
        if self._preparing is None or not (wait or self._preparing.done()):
            return None
        publication, self._preparing = self._preparing, None
        payload = publication.result()
        self._has_published |= payload is not None
        if not self._has_published:
            raise ConfigError(
                "the first policy fails its check before publication, as the warning above says, so that actors have "
                "none: mend the network's weights (--network, or the file of --init-from)"
            )
        return self._version, payload

    def _prepare(self) -> bytes | None:
        """The policy as it was at the last snapshot, at the level in use, or in fp32 while that is not ready or fit."""
        with nullcontext() if self._snapshot is None else self._snapshot.reading():
            return self._payload()

    def _payload(self) -> bytes | None:
        if self._config.acting.actor_runtime == "torch":
            is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in self._published.state_dict().values())
            return serialise_module(self._published, self._network.spec) if is_finite else None
        self._adopt_results()
        if self._recent.full and not self._proved_on_real_rows:
            self._proved_on_real_rows = True
            self._prove()
        level, full = self._bound[self._in_use], self._bound[FULL_PRECISION]
        payload = level.payload() if level.ready and not level.renewing else None
        self.scheme = FULL_PRECISION if payload is None else level.scheme
        if payload is None and level is not full and full.policy_is_finite():
            payload = full.payload()
        return payload

    def artifact(self, version: int, scheme: str | None = None) -> CompressedPolicy | None:
        """The current policy as an artifact, for the run's directory; None with the torch runtime.

        ``scheme``: a level, or fp32; None: that of the last publication.
        """
        self._wait()
        if self._config.acting.actor_runtime == "torch":
            return None
        self._take()
        level = self._level(self.scheme if scheme is None else scheme)
        return (level if level.ready else self._bound[FULL_PRECISION]).artifact(version)

    def full_precision(self, version: int) -> CompressedPolicy:
        """The same policy as the last artifact's or publication's, uncompressed."""
        return self._level(FULL_PRECISION).artifact(version)

    def metrics(self) -> dict[str, float]:
        """By ``name/level``, of the level in use; see ``accel.publishing.level``."""
        self._wait()
        if self._config.acting.actor_runtime == "torch":
            return {}
        level = self._bound[self._in_use]
        return {f"{name}/{level.scheme}": value for name, value in level.metrics().items()}

    @property
    def rows_per_actor(self) -> int:
        """How many rows an actor's policy acts on at once."""
        return self._config.acting.envs_per_actor * self._network.spec.agents

    def close(self) -> None:
        """At the end of a run: begin no more work, and wait only briefly for work in progress."""
        self._preparer.close(CLOSE_TIMEOUT_S)
        self._worker.close(CLOSE_TIMEOUT_S)
        for level in self._bound.values():
            level.abandon()

    def _wait(self) -> None:
        """Until no publication is in preparation."""
        if self._preparing is not None:
            wait([self._preparing])

    def _take(self) -> None:
        """Bring the snapshot up to date."""
        if self._snapshot is not None:
            self._snapshot.take()

    def _renewal_updates(self) -> int:
        """Updates in which kept inputs are replaced: short for a student and for compensation, long for ranges, which
        are better of the unrolls of several updates."""
        config = self._config
        if any("prune" in level for level in self.levels):
            return IMAGE_RENEWAL_UPDATES if self._network.spec.has_images else 1
        has_student = any("distill" in level for level in self.levels)
        return (
            REFILLS * distillation_schedule(config, self._intervals)[0]
            if has_student
            else max(REFILLS, interval_updates(config, self._intervals.calibration))
        )

    def _maintained(self) -> tuple[str, ...]:
        """The level in use, and those that still have to be prepared."""
        return (self._in_use, *(scheme for scheme in self._prepared if not self._bound[scheme].ready))

    def _start_work(self) -> None:
        """Begin due work, at the levels in turns."""
        maintained = self._maintained()
        turn = maintained.index(self._last_served) + 1 if self._last_served in maintained else 0
        for scheme in (*maintained[turn:], *maintained[:turn]):
            level = self._bound[scheme]
            if not level.has_work:
                continue
            if level.is_quick or self._worker.inline:
                level.start_work(self._caller, self._copied)
            elif not self._worker.busy:
                level.start_work(self._worker, self._copied)
                self._last_served = scheme
        self._adopt_results()

    def _copied(self) -> torch.nn.Module:
        """The module, in a copy for background work."""
        if self._copy is None:
            self._copy = Snapshot(self._module)
        self._copy.take()
        return self._copy.module

    def _adopt_results(self) -> None:
        """Commit finished work at every level."""
        for level in self._bound.values():
            was_ready = level.ready
            level.adopt_result()
            if level.ready and not was_ready:
                self._round_learner()

    def _round_learner(self) -> None:
        """Set the learner's fake quantisation: that of a ``qat`` level in use once it has ranges, else none."""
        self._network.fake_quantisation = self._bound[self._in_use].quantiser
        if self._network.fake_quantisation is not None:
            logger.info("the learner rounds its policy as %s does from now on", self._in_use)

    def _level(self, scheme: str) -> Level:
        if scheme not in self._bound:
            started = perf_counter()
            try:
                plan = make_compressor(
                    scheme,
                    cpu=self._cpu,
                    student_factory=StudentFactory(
                        self._network.spec, self._config.policy.activation, self._config.run.seed
                    ),
                    divergence=self._divergence,
                ).bind(
                    self._module,
                    example_inputs(self._network.spec, self._network.state_shapes),
                    output_names=self._module.output_names,
                    metadata=self._metadata,
                )
                if is_quantisation_aware(scheme):
                    FakeQuantiser(plan, self._module)
            except CompressorError as error:
                remedy = "; in torch: --actor-runtime torch --compressor fp32" if isinstance(error, GraphError) else ""
                raise ConfigError(
                    f"compressor '{scheme}' does not suit network '{self._config.policy.network}': {error}{remedy}"
                ) from error
            follows = all(method.name != "distill" for method in parse_scheme(scheme).methods)
            bound = self._config.compression.max_publish_kl
            validator = Validator(self._validation_inputs, self._divergence, bound, follows_policy=follows)
            self._bound[scheme] = Level(
                scheme, plan, self._module, self._published, self._config, self._intervals, validator, self._recent
            )
            logger.info("bound %s in %.0f ms, once for the whole run", scheme, 1e3 * (perf_counter() - started))
        return self._bound[scheme]

    def _prove(self) -> None:
        """Compare the exported graph with the module on random rows at the start, on real ones once they are there.

        Raises: ConfigError: they differ."""
        if not self._bound[FULL_PRECISION].policy_is_finite():
            return
        module = copy.deepcopy(self._published).to("cpu").eval()
        try:
            check_faithful(self.full_precision(0), module, self._validation_inputs.full())
        except VerificationError as error:
            raise ConfigError(f"network '{self._config.policy.network}': {error}") from error


def _canonical(scheme: str) -> str:
    return str(parse_scheme(scheme))
