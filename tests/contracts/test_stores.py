"""What every store promises, on each of them; and what fifo, circular buffer and replay promise beyond it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.config import TrainConfig
from accel.config.parts import RewardConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample, Store, Transitions
from accel.experience.stores.circular import Circular
from accel.experience.stores.fifo import Fifo, Rounds
from accel.experience.stores.prioritised import PrioritisedReplay
from accel.experience.stores.replay import Replay
from accel.experience.stores.sequences import Sequences
from accel.experience.stores.trajectories import Trajectories
from accel.experience.unroll import Unroll, UnrollLayout
from tests.contracts.episodes import LAYOUTS, VECTOR, Actor, Row, Where

CPU = torch.device("cpu")
ROWS, ENVS = 5, 2
DISCOUNT = 0.9


def fifo(spec: EnvSpec = VECTOR, batch_unrolls: int = 2) -> Fifo:
    return Fifo(batch_unrolls, Batcher(spec, CPU), RewardTransform(RewardConfig(), DISCOUNT))


def rounds(spec: EnvSpec = VECTOR, actors: Callable[[], int] = lambda: 2) -> Rounds:
    return Rounds(actors, Batcher(spec, CPU), RewardTransform(RewardConfig(), DISCOUNT))


def circular(spec: EnvSpec = VECTOR, batches: int = 3, uses: int = 2, batch_unrolls: int = 2) -> Circular:
    rewards = RewardTransform(RewardConfig(), DISCOUNT)
    return Circular(batch_unrolls, batches, uses, Batcher(spec, CPU), rewards)


def trajectories(
    spec: EnvSpec = VECTOR, slots: int = 8, replays: int = 1, batch_unrolls: int = 2, exponent: float = 1.0
) -> Trajectories:
    options = TrainConfig.create(
        algorithm="ptr-ppo", batch_unrolls=batch_unrolls, replay_capacity=slots * ROWS, replays=replays,
        priority_exponent=exponent, weight_exponent=0.5,
    )  # fmt: skip
    rewards = RewardTransform(RewardConfig(reward_scale=2.0), DISCOUNT)
    layout = UnrollLayout(spec, ROWS, ENVS)
    return Trajectories(options, layout, Batcher(spec, CPU), rewards, np.random.default_rng(5))


def replaying(capacity: int, n: int, batch: int, streams: int, gives_steps: bool) -> TrainConfig:
    return TrainConfig.create(
        algorithm="dqn", corrector="retrace" if gives_steps else "none", actors=streams, replay_capacity=capacity,
        n_step=n, discount=DISCOUNT, batch_size=batch, learning_starts=0,
    )  # fmt: skip


def replay(
    spec: EnvSpec = VECTOR,
    capacity: int = 400,
    n: int = 3,
    batch: int = 64,
    streams: int = 1,
    scale: float = 1.0,
    gives_steps: bool = False,
) -> Replay:
    rewards = RewardTransform(RewardConfig(reward_scale=scale), DISCOUNT)
    options = replaying(capacity, n, batch, streams, gives_steps)
    return Replay(options, UnrollLayout(spec, ROWS, ENVS), Batcher(spec, CPU), rewards, np.random.default_rng(5))


def prioritised(
    spec: EnvSpec = VECTOR,
    capacity: int = 400,
    n: int = 3,
    batch: int = 64,
    streams: int = 1,
    exponent: float = 1.0,
    gives_steps: bool = False,
) -> PrioritisedReplay:
    rewards = RewardTransform(RewardConfig(), DISCOUNT)
    options = replaying(capacity, n, batch, streams, gives_steps).replace(
        store="prioritised", priority_exponent=exponent, weight_exponent=0.5
    )
    return PrioritisedReplay(
        options, UnrollLayout(spec, ROWS, ENVS), Batcher(spec, CPU), rewards, np.random.default_rng(5)
    )


STORES: dict[str, Callable[..., Store]] = {
    "fifo": fifo,
    "rounds": rounds,
    "circular": circular,
    "trajectories": trajectories,
    "replay": replay,
    "prioritised": prioritised,
}
REPLAYS = {"replay": replay, "prioritised": prioritised}


class Source:
    """Inserts actors' unrolls into a store; what is released is overwritten, as the transport would."""

    def __init__(self, *actors: Actor) -> None:
        self.actors = actors
        self.releases: Counter[int] = Counter()
        self.inserted = 0
        self.rows: list[list[list[Row]]] = [[[] for _ in range(a.layout.envs)] for a in actors]

    def insert(self, store: Store, number: int = 0) -> list[list[Row]]:
        """One unroll of one actor; returns its rows."""
        unroll, rows = self.actors[number].unroll()
        mine, self.inserted = self.inserted, self.inserted + 1

        def release() -> None:
            self.releases[mine] += 1
            for array in unroll.arrays.values():
                array.view(np.uint8)[...] = 113

        store.insert(Experience(number, unroll, release))
        for kept, new in zip(self.rows[number], rows, strict=True):
            kept.extend(new)
        return rows


def tensors(sample: Sample) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in sample.tensors().items()}


# --- every store ---


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_inserted_is_released_exactly_once(store: str, layout: str) -> None:
    made, source = STORES[store](LAYOUTS[layout]), Source(Actor(LAYOUTS[layout], ROWS, ENVS))
    for _ in range(12):
        source.insert(made)
        while made.available and (sample := made.sample()) is not None:
            made.feedback(sample, None)
            if store in REPLAYS:
                break
    assert source.releases == Counter(dict.fromkeys(range(12), 1))


@pytest.mark.parametrize("store", STORES)
def test_a_sample_appears_when_there_is_enough_and_is_said_to(store: str) -> None:
    made, source = STORES[store](), Source(Actor(VECTOR, ROWS, ENVS, longest=50))
    assert made.available == 0 and made.sample() is None
    source.insert(made)
    assert (made.sample() is None) == (made.available == 0) == (store not in REPLAYS)
    source.insert(made)
    sample = made.sample()
    assert (sample.transitions is None) == (sample.batch is not None) == (store not in REPLAYS)
    assert sample.valid_steps > 0


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_accepts_nothing_has_a_sample(store: str) -> None:
    """So that never both sides wait; only a queue, whose unrolls hold buffers, lets actors wait at all."""
    made, source = STORES[store](), Source(Actor(VECTOR, ROWS, ENVS))
    refused = 0
    for _ in range(10):
        if made.accepts:
            source.insert(made)
            continue
        refused += 1
        while not made.accepts:
            available, sample = made.available, made.sample()
            assert sample is not None and made.available == available - 1
            made.feedback(sample, None)
    assert (refused > 0) == (store in {"fifo", "rounds", "trajectories"})


@pytest.mark.parametrize("store", ["fifo", "rounds", "circular", "trajectories"])
def test_batches_count_their_valid_steps(store: str) -> None:
    made, source = STORES[store](), Source(Actor(VECTOR, ROWS, ENVS, longest=3))
    source.insert(made), source.insert(made)
    sample = made.sample()
    assert sample.valid_steps == int(sample.batch.valid.sum()) < 2 * ROWS * ENVS


# --- fifo ---


def test_fifo_gives_every_step_once_and_in_order() -> None:
    made, source = fifo(), Source(Actor(VECTOR, ROWS, ENVS))
    expected: list[list[float]] = [[], []]
    found: list[list[float]] = [[], []]
    for _ in range(3):
        for _ in range(4):
            for env, rows in enumerate(source.insert(made)):
                expected[env] += [observation_key(source.actors[0], row.where) for row in rows]
        while (sample := made.sample()) is not None:
            batch = sample.batch
            assert sample.rewards.shape == (ROWS, 2 * ENVS)
            for column in range(2 * ENVS):
                found[column % ENVS] += [key(o.numpy()) for o in batch.observations[:-1, column]]
            made.feedback(sample, None)
    assert found == expected


# --- rounds ---


def test_an_actor_that_is_gone_is_waited_for_no_more_and_what_it_sent_counts() -> None:
    alive = 3
    made = rounds(actors=lambda: alive)
    source = Source(*(Actor(VECTOR, ROWS, ENVS, number) for number in range(3)))
    for number in range(2):
        source.insert(made, number)
        assert made.accepts and made.available == 0
    alive = 2
    assert not made.accepts and made.available == 1
    sample = made.sample()
    assert sample is not None and sample.batch is not None and sample.batch.valid.shape[1] == 2 * ENVS
    made.feedback(sample, None)
    alive = 3
    for number in (0, 2, 1):
        source.insert(made, number)
    alive = 1
    sample = made.sample()
    assert sample is not None and sample.batch is not None and sample.batch.valid.shape[1] == 3 * ENVS
    made.feedback(sample, None)
    assert made.sample() is None and source.releases == Counter(dict.fromkeys(range(5), 1))


# --- circular ---


@pytest.mark.parametrize(("batches", "uses"), [(1, 1), (1, 3), (3, 2), (4, 1)])
def test_circular_uses_no_batch_more_often_than_it_may_and_keeps_no_more_than_it_may(batches: int, uses: int) -> None:
    made, source = circular(batches=batches, uses=uses, batch_unrolls=1), Source(Actor(VECTOR, ROWS, ENVS))
    for round_ in range(6):
        for _ in range(batches + 2):
            source.insert(made)
        assert made.available == batches * uses
        seen: Counter[float] = Counter()
        while (sample := made.sample()) is not None:
            seen[key(sample.batch.observations[0, 0].numpy())] += 1
            made.feedback(sample, None)
        newest = [source.rows[0][0][ROWS * k].where for k in range((batches + 2) * (round_ + 1))][-batches:]
        assert seen == Counter({observation_key(source.actors[0], where): uses for where in newest})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_unrolls", [1, 2])
def test_circular_has_memory_of_its_own(layout: str, batch_unrolls: int) -> None:
    spec = LAYOUTS[layout]
    made, kept = circular(spec, uses=2, batch_unrolls=batch_unrolls), fifo(spec, batch_unrolls)
    source, twin = Source(Actor(spec, ROWS, ENVS)), Source(Actor(spec, ROWS, ENVS))
    for _ in range(batch_unrolls):
        source.insert(made), twin.insert(kept)
    assert len(source.releases) == batch_unrolls and not twin.releases
    of_circular, of_fifo = made.sample(), kept.sample()
    expected = tensors(of_fifo)
    assert tensors(of_circular).keys() == expected.keys()
    for name, value in of_circular.tensors().items():
        assert torch.equal(value, expected[name]), name
    kept.feedback(of_fifo, None)  # Here the buffers are overwritten: what shares them changes.
    assert torch.equal(of_fifo.tensors()["rewards"], expected["rewards"]) == (batch_unrolls > 1)


# --- trajectories ---


def columns(sample: Sample, spec: EnvSpec) -> dict[Any, dict[str, Any]]:
    """A batch's trajectories by their observations."""
    assert sample.batch is not None and sample.rewards is not None
    found = {}
    for i in range(sample.batch.valid.shape[1]):
        fields = {
            name: value[:, i].numpy().copy() if not name.startswith("state_") else value[i].numpy().copy()
            for name, value in sample.tensors().items()
        }
        found[key(fields["observations"])] = fields
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replayed_trajectories_are_the_newest_that_were_learned_from(layout: str) -> None:
    """Field by field; every one is drawn, and as many batches as there may be for each new one."""
    spec = LAYOUTS[layout]
    made, source = trajectories(spec, slots=8, replays=3), Source(Actor(spec, ROWS, ENVS))
    new: list[dict[Any, dict[str, Any]]] = []
    seen: set[Any] = set()
    for k in range(12):
        for _ in range(2):
            source.insert(made)
        assert made.available == 1
        sample = made.sample()
        assert sample is not None and sample.weights is None
        new.append(columns(sample, spec))
        made.feedback(sample, None)
        assert source.releases == Counter(dict.fromkeys(range(2 * (k + 1)), 1))
        assert made.available == 3 and made.accepts
        kept = {name: fields for batch in new[-2:] for name, fields in batch.items()}
        for _ in range(3):
            again = made.sample()
            assert again.valid_steps == int(again.batch.valid.sum())
            for name, fields in columns(again, spec).items():
                assert fields.keys() == kept[name].keys()
                assert all(np.array_equal(value, kept[name][field]) for field, value in fields.items())
                seen.add(name)
            made.feedback(again, None)
        assert made.available == 0
    assert len(seen) > 0.8 * sum(len(batch) for batch in new) and made.nbytes > 0


def test_trajectories_are_drawn_in_proportion_to_their_priorities() -> None:
    made, source = trajectories(slots=4, replays=1000), Source(Actor(VECTOR, ROWS, ENVS, longest=50))
    source.insert(made), source.insert(made)
    sample = made.sample()
    names = list(columns(sample, VECTOR))
    made.feedback(sample, torch.tensor([1.0, 2.0, 3.0, 6.0]))
    counts: Counter[Any] = Counter()
    for _ in range(1000):
        again = made.sample()
        drawn = [key(again.batch.observations[:, i].numpy()) for i in range(4)]
        counts.update(drawn)
        sizes = {name: size + 1e-3 for name, size in zip(names, (1, 2, 3, 6), strict=True)}
        expected = np.array([sizes[name] for name in drawn]) ** -0.5
        np.testing.assert_allclose(again.weights.numpy(), expected / expected.max(), rtol=1e-5)
    shares = np.array([counts[name] for name in names]) / 4000
    np.testing.assert_allclose(shares, np.array([1, 2, 3, 6]) / 12, atol=0.03)
    drawn = again.key % 4  # type: ignore[operator]
    made.feedback(again, torch.full((4,), 0.0))
    np.testing.assert_allclose(made.tree.get(drawn), 1e-3)


def test_a_trajectory_without_a_step_is_never_drawn() -> None:
    made, source = trajectories(slots=4, replays=50), Source(Actor(VECTOR, ROWS, ENVS, longest=50))
    unroll, _ = source.actors[0].unroll()
    unroll["valid"][:, 0] = False
    made.insert(Experience(0, unroll, lambda: None))
    source.insert(made)
    sample = made.sample()
    made.feedback(sample, torch.ones(4))
    for _ in range(50):
        again = made.sample()
        assert again is not None and again.batch is not None and bool(again.batch.valid.any(0).all())


# --- replay ---


def key(observation: Any) -> Any:
    """What tells an observation from every other one."""
    return np.ascontiguousarray(observation).tobytes()


def observation_key(actor: Actor, where: Where) -> Any:
    return key(actor.observation(where))


def index(source: Source) -> dict[Any, tuple[Actor, Where]]:
    """Every step by its observation."""
    found = {}
    for actor, environments in zip(source.actors, source.rows, strict=True):
        for rows in environments:
            for row in rows:
                if row.valid:
                    found[observation_key(actor, row.where)] = (actor, row.where)
    return found


def mistakes(samples: list[Transitions], source: Source, n: int) -> set[str]:
    """What in samples is not as the definition says; each distinct transition is looked at once."""
    found, known = set(), index(source)
    fields = [
        np.concatenate([getattr(steps, name).numpy() for steps in samples])
        for name in ("observations", "actions", "returns", "discounts", "next_observations")
    ]
    first = {key_of: i for i, key_of in enumerate(zip(*map(row_bytes, fields), strict=True))}
    for i in first.values():
        observation, taken, its_return, its_discount, its_next = (field[i] for field in fields)
        origin = known.get(key(observation))
        if origin is None:
            found.add("a start that is no valid row")
            continue
        actor, where = origin
        _, action, total, discount, following = actor.transition(where, n, DISCOUNT)
        if int(taken) != action:
            found.add("action")
        if abs(float(its_return) - total) > 1e-5:
            found.add("return")
        if abs(float(its_discount) - discount) > 1e-6:
            found.add("discount")
        if discount and not np.array_equal(its_next, following):
            found.add("next observation")
    return found


def row_bytes(field: Any) -> list[bytes]:
    """Each row of an array as its bytes."""
    whole, size = np.ascontiguousarray(field).tobytes(), field[0].nbytes
    return [whole[i : i + size] for i in range(0, len(whole), size)]


def eligible(source: Source, number: int, n: int, rows: int | None = None) -> set[Any]:
    """The starts that one actor's newest ``rows`` rows hold: valid ones with n rows behind them."""
    actor, found = source.actors[number], set()
    for environment in source.rows[number]:
        kept = environment if rows is None else environment[-rows:]
        found |= {observation_key(actor, row.where) for row in kept[: len(kept) - n] if row.valid}
    return found


def draw(store: Replay, count: int = 60) -> list[Transitions]:
    samples = []
    for _ in range(count):
        sample = store.sample()
        samples.append(sample.transitions)
        store.feedback(sample, None)
    return samples


def starts(samples: list[Transitions]) -> set[Any]:
    return {key_of for steps in samples for key_of in row_bytes(steps.observations.numpy())}


@pytest.mark.few(12)
@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_transitions_are_those_of_the_definition(replay: Callable[..., Replay], layout: str, n: int) -> None:
    """Across unrolls, terminations and truncations; every eligible row is drawn and no other."""
    spec = LAYOUTS[layout]
    made, source = replay(spec, n=n), Source(Actor(spec, ROWS, ENVS))
    for _ in range(12):
        source.insert(made)
    samples = draw(made)
    assert not mistakes(samples, source, n)
    assert starts(samples) == eligible(source, 0, n)


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_steps_of_a_transition_are_those_of_the_definition(replay: Callable[..., Replay], layout: str) -> None:
    """Each is a transition of one step; the next begins where it ends, as long as the episode goes on."""
    spec, n = LAYOUTS[layout], 4
    made, source = replay(spec, n=n, capacity=60, batch=16, gives_steps=True), Source(Actor(spec, ROWS, ENVS))
    recorded: dict[Any, float] = {}
    for k in range(14):
        unroll, rows = source.actors[0].unroll()
        unroll["behaviour_log_prob"][...] = -np.arange(ROWS * ENVS).reshape(ROWS, ENVS) - 1000.0 * k
        for env in range(ENVS):
            for t, row in enumerate(rows[env]):
                if row.valid:
                    recorded[observation_key(source.actors[0], row.where)] = float(unroll["behaviour_log_prob"][t, env])
            source.rows[0][env].extend(rows[env])
        made.insert(Experience(0, unroll, lambda: None))
    lengths, known, ones = set(), index(source), []
    for _ in range(5):
        sample = made.sample()
        steps = sample.steps
        assert torch.equal(steps.observations[0], sample.transitions.observations)
        assert bool(steps.valid[0].all()) and len(steps.observations) == n + 1
        for i in range(steps.valid.shape[1]):
            count = int(steps.valid[:, i].sum())
            assert bool(steps.valid[:count, i].all())
            for k in range(count):
                mine = slice(i, i + 1)
                one = Transitions(
                    steps.observations[k, mine], steps.actions[k, mine], steps.rewards[k, mine],
                    steps.discounts[k, mine], steps.observations[k + 1, mine],
                )  # fmt: skip
                ones.append(one)
                assert float(steps.behaviour_log_prob[k, i]) == recorded[key(steps.observations[k, i].numpy())]
            actor, where = known[key(steps.observations[0, i].numpy())]
            _, _, _, discount, following = actor.transition(where, n, DISCOUNT)
            if discount:
                assert discount == pytest.approx(DISCOUNT**count)
                assert np.array_equal(steps.observations[count, i].numpy(), following)
            assert bool((steps.discounts[:count, i] == 0).any()) == (discount == 0)
            lengths.add(count)
    assert lengths >= {1, n} and not mistakes(ones, source, 1)


@pytest.mark.few(8)
@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("capacity", [31, 40])
def test_the_ring_holds_the_newest_rows(replay: Callable[..., Replay], layout: str, capacity: int) -> None:
    spec, n = LAYOUTS[layout], 2
    made, source = replay(spec, capacity=capacity, n=n), Source(Actor(spec, ROWS, ENVS))
    for _ in range(11):
        source.insert(made)
        assert not mistakes(draw(made, 20), source, n)
    length = capacity // ENVS
    newest, oldest = eligible(source, 0, n, length - 1), eligible(source, 0, n, length - spec.frame_stack)
    assert oldest <= starts(draw(made)) <= newest


def test_an_unroll_shorter_than_n_behind_a_gap_gives_no_sample_yet() -> None:
    made, source = replay(n=3), Source(Actor(VECTOR, 2, ENVS, longest=50))
    source.insert(made)
    source.actors[0].unroll()
    source.insert(made)
    assert made.available == 0 and made.sample() is None
    source.insert(made), source.insert(made)
    assert made.available == 1
    assert not mistakes(draw(made, 5), source, 3)


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
def test_rows_that_were_left_out_are_in_no_return(replay: Callable[..., Replay]) -> None:
    """One environment's part of an unroll was taken out: what ran into it is not learned from."""
    made, source, n = replay(n=3), Source(Actor(VECTOR, ROWS, ENVS, longest=50)), 3
    source.insert(made)
    unroll, rows = source.actors[0].unroll()
    unroll["valid"][:, 0] = False
    unroll["rewards"][:, 0] = 0.0
    made.insert(Experience(0, unroll, lambda: None))
    for k, new in enumerate(rows):
        source.rows[0][k] += [replace(row, valid=row.valid and k == 1) for row in new]
    source.insert(made), source.insert(made)
    samples = draw(made)
    assert not mistakes(samples, source, n)
    whole = eligible(source, 0, n)
    cut = {observation_key(source.actors[0], row.where) for row in source.rows[0][0][ROWS - n : ROWS]}
    assert starts(samples) == whole - cut


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
def test_several_actors_share_the_capacity(replay: Callable[..., Replay]) -> None:
    made = replay(capacity=240, streams=3)
    source = Source(*(Actor(VECTOR, ROWS, ENVS, number) for number in range(3)))
    for k in range(40):
        source.insert(made, k % 3 if k % 4 else 0)
    samples = draw(made, 200)
    assert not mistakes(samples, source, 3)
    assert starts(samples) == set.union(*(eligible(source, k, 3, 240 // (3 * ENVS) - 1) for k in range(3)))


def test_every_row_is_drawn_as_often_as_any_other() -> None:
    """Also where one actor's episodes are short, whose many resets are no starts."""
    made = replay(capacity=120, streams=2)
    source = Source(Actor(VECTOR, ROWS, ENVS, 0, longest=2), Actor(VECTOR, ROWS, ENVS, 1, longest=40))
    for k in range(30):
        source.insert(made, k % 2)
    counts = Counter(key(o.numpy()) for steps in draw(made, 400) for o in steps.observations)
    rows = eligible(source, 0, 3, 29) | eligible(source, 1, 3, 29)
    assert counts.keys() == rows
    drawn = np.array(list(counts.values()))
    expected = drawn.sum() / len(rows)
    limit = len(rows) - 1 + 4 * np.sqrt(2 * (len(rows) - 1))
    assert float(((drawn - expected) ** 2 / expected).sum()) < limit
    favoured = drawn * np.where(np.arange(len(drawn)) % 2, 1.2, 0.8)
    assert float(((favoured - expected) ** 2 / expected).sum()) > limit


def test_a_few_valid_rows_among_many_are_found() -> None:
    made, source = replay(capacity=2000, n=1), Source(Actor(VECTOR, 200, 1, longest=50))
    unroll, rows = source.actors[0].unroll()
    keep = next(t for t in range(50, 150) if unroll["valid"][t, 0])
    unroll["valid"][:-1, 0] = np.arange(200) == keep
    made.insert(Experience(0, unroll, lambda: None))
    assert starts(draw(made, 3)) == {observation_key(source.actors[0], rows[0][keep].where)}


def test_rewards_are_transformed_when_they_are_sampled() -> None:
    plain, scaled = replay(), replay(scale=10.0)
    for store in (plain, scaled):
        source = Source(Actor(VECTOR, ROWS, ENVS))
        for _ in range(6):
            source.insert(store)
    one, ten = draw(plain, 1)[0], draw(scaled, 1)[0]
    assert torch.equal(one.observations, ten.observations)
    assert torch.allclose(one.returns * 10, ten.returns, rtol=1e-5) and float(one.returns.abs().max()) > 0.1


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
@settings(max_examples=20)
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    rows=st.integers(1, 7),
    n=st.integers(1, 9),
    capacity=st.integers(1, 90),
    longest=st.integers(1, 12),
    arrivals=st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=25),
)
def test_whatever_arrives_transitions_are_right(
    replay: Callable[..., Replay], layout: str, rows: int, n: int, capacity: int, longest: int,
    arrivals: list[tuple[int, bool]],
) -> None:  # fmt: skip
    """Unrolls that were lost on their way leave their neighbours as they were."""
    spec = LAYOUTS[layout]
    made = replay(spec, capacity, n, 16, 2)
    source = Source(*(Actor(spec, rows, ENVS, number, longest=longest) for number in range(2)))
    for number, lost in arrivals:
        if lost:
            source.actors[number].unroll()
        else:
            source.insert(made, number)
        if made.available:
            assert not mistakes(draw(made, 2), source, n)
        else:
            assert made.sample() is None


# --- prioritised ---


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_transitions_are_drawn_in_proportion_to_their_priorities(exponent: float) -> None:
    made = prioritised(capacity=60, streams=2, exponent=exponent, n=1)
    source = Source(Actor(VECTOR, ROWS, ENVS, 0), Actor(VECTOR, ROWS, ENVS, 1))
    for k in range(16):
        source.insert(made, k % 2)
    given_to: dict[Any, float] = {}
    for _ in range(150):  # Until each has one of ours; a transition's weight follows from its last.
        sample = made.sample()
        keys = [key(o.numpy()) for o in sample.transitions.observations]
        given_to |= {k: float(1 + zlib.crc32(k) % 7) for k in keys}
        made.feedback(sample, torch.tensor([given_to[k] for k in keys]))
    counts = Counter(key(o.numpy()) for steps in draw(made, 150) for o in steps.observations)
    rows = eligible(source, 0, 1, 14) | eligible(source, 1, 1, 14)
    assert counts.keys() == rows == given_to.keys()
    drawn = np.array([counts[row] for row in rows], np.float64)
    weights = np.array([(given_to[row] + 1e-3) ** exponent for row in rows])
    expected = drawn.sum() * weights / weights.sum()
    limit = len(rows) - 1 + 4 * np.sqrt(2 * (len(rows) - 1))
    assert float(((drawn - expected) ** 2 / expected).sum()) < limit
    other = drawn.sum() * np.roll(weights, 1) / weights.sum() if exponent else 1.2 * expected
    assert float(((drawn - other) ** 2 / other).sum()) > limit


def test_importance_weights_are_those_of_the_definition() -> None:
    """(N P)^−β over the greatest of the batch, so that a transition drawn twice as often counts 2^−β as much."""
    made, source = prioritised(capacity=60, n=1), Source(Actor(VECTOR, ROWS, ENVS))
    for _ in range(8):
        source.insert(made)
    sample = made.sample()
    assert torch.allclose(sample.weights, torch.ones(64))
    priorities = torch.arange(1.0, 65.0)
    made.feedback(sample, priorities)
    again = made.sample()
    assert again is not None and again.weights is not None and again.transitions is not None
    p = made.tree.get(again.key[0])  # type: ignore[union-attr, index]
    expected = (p / p.min()) ** -0.5
    np.testing.assert_allclose(again.weights.numpy(), expected, rtol=1e-5)
    assert float(again.weights.max()) == pytest.approx(1.0) and float(again.weights.min()) < 0.9


def test_priorities_of_actors_arrive_with_the_rows_that_complete_a_return() -> None:
    n, actor = 2, Actor(VECTOR, ROWS, ENVS, longest=50)
    made = prioritised(capacity=400, n=n)
    wanted: dict[Any, float] = {}
    later: list[list[Row]] = [[], []]
    for k in range(6):
        unroll, rows = actor.unroll()
        arrays = {**unroll.arrays, "priority": np.full((ROWS, ENVS), 1e6, np.float32)}
        for env in range(ENVS):
            completed = (later[env] + rows[env])[: (len(later[env]) + ROWS - n)]
            later[env] = (later[env] + rows[env])[-n:]
            for t, row in enumerate(completed, start=ROWS - len(completed)):
                value = float(1 + (7 * k + 3 * t + env) % 11)
                arrays["priority"][t, env] = value
                wanted |= {observation_key(actor, row.where): value} if row.valid else {}
        made.insert(Experience(0, Unroll(arrays), lambda: None))
    found: dict[Any, float] = {}
    for _ in range(200):
        sample = made.sample()
        values = made.tree.get(sample.key[0])  # type: ignore[union-attr, index]
        found |= {key(o.numpy()): float(v) for o, v in zip(sample.transitions.observations, values, strict=True)}
    assert found.keys() <= wanted.keys() and len(found) > 0.9 * len(wanted) > 30
    for row, value in found.items():
        assert value == pytest.approx(wanted[row] + 1e-3)


# --- sequences ---


def sequences(spec: EnvSpec, slots: int = 6, actors: int = 1, parts: int = 2, batch: int = 16) -> Sequences:
    options = TrainConfig.create(
        algorithm="r2d2", actors=actors, replay_capacity=slots * ROWS * ENVS * actors, batch_size=batch,
        sequence_unrolls=parts, priority_exponent=1.0, n_step=1, learning_starts=0,
    )  # fmt: skip
    rewards = RewardTransform(RewardConfig(), DISCOUNT)
    return Sequences(options, UnrollLayout(spec, ROWS, ENVS), Batcher(spec, CPU), rewards, np.random.default_rng(5))


def recorded(actor: Actor, row: Row) -> tuple[bool, bool, int, float]:
    """Whether a row is a step and the first of its episode, its action and its reward."""
    if not row.valid:
        return False, row.first, 0, 0.0
    episode, step = actor.episodes[row.where[:2]], row.where[2]
    return True, row.first, episode.actions[step], episode.rewards[step]


WHOLE = {name: spec for name, spec in LAYOUTS.items() if spec.autoreset == "next_step"}


@pytest.mark.few(4)
@pytest.mark.parametrize("layout", WHOLE)
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_sequences_are_consecutive_unrolls_of_one_environment(layout: str, parts: int) -> None:
    """Every one that is whole in the replay is drawn, and no other; unrolls that were lost are in none."""
    spec = WHOLE[layout]
    made, source = sequences(spec, actors=2, parts=parts), Source(*(Actor(spec, ROWS, ENVS, k) for k in range(2)))
    kept: dict[int, list[list[list[Row]] | None]] = {0: [], 1: []}
    for k in range(22):
        number = k % 2
        if k in (6, 13):
            source.actors[number].unroll()
            kept[number].append(None)
        else:
            kept[number].append(source.insert(made, number))
    wanted: dict[Any, tuple[Actor, list[Row]]] = {}
    for number, unrolls in kept.items():
        newest = [i for i, rows in enumerate(unrolls) if rows is not None][-6:]
        for i in newest:
            joined = [unrolls[j] if j in newest else None for j in range(i - parts + 1, i + 1)]
            for env in range(ENVS):
                rows = [row for part in joined if part is not None for row in part[env]]
                if None not in joined and any(row.valid for row in rows[-ROWS:]):
                    actor = source.actors[number]
                    wanted[b"".join(observation_key(actor, row.where) for row in rows)] = actor, rows
    expected: dict[Any, tuple[Any, ...]] = {}
    for _ in range(40):
        sample = made.sample()
        batch = sample.batch
        assert batch.observations.shape[:2] == (parts * ROWS + 1, 16)
        drawn = tuple(field.numpy() for field in (batch.valid, batch.first, batch.actions, sample.rewards))
        for i, name in enumerate(row_bytes(batch.observations[:-1].numpy().swapaxes(0, 1))):
            actor, rows = wanted[name]
            if name not in expected:
                expected[name] = tuple(map(np.array, zip(*(recorded(actor, row) for row in rows), strict=True)))
            valid, first, actions, rewards = (field[: len(rows), i] for field in drawn)
            assert np.array_equal(valid, expected[name][0]) and np.array_equal(first, expected[name][1])
            assert np.array_equal(actions[valid], expected[name][2][valid])
            np.testing.assert_allclose(rewards[valid], expected[name][3][valid], rtol=1e-5)
        made.feedback(sample, None)
    assert expected.keys() == wanted.keys()
    assert set(source.releases.values()) == {1} and made.nbytes > 0


def test_sequences_are_drawn_by_what_feedback_said_of_them() -> None:
    made, source = sequences(VECTOR), Source(Actor(VECTOR, ROWS, ENVS, longest=50))
    for _ in range(9):
        source.insert(made)
    sample = made.sample()
    assert torch.allclose(sample.weights, torch.ones(16))
    favourite = key(sample.batch.observations[:, 0].numpy())
    is_favourite = [key(sample.batch.observations[:, i].numpy()) == favourite for i in range(16)]
    made.feedback(sample, torch.where(torch.tensor(is_favourite), 1000.0, 1.0))
    again = made.sample()
    assert again is not None and again.batch is not None and again.weights is not None
    drawn = [key(again.batch.observations[:, i].numpy()) == favourite for i in range(16)]
    assert sum(drawn) >= 14
    source.insert(made)
    made.feedback(again, torch.full((16,), 5.0))
    assert made.sample() is not None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("n", "return"), ("terminated", "discount"), ("valid", "a start that is no valid row"),
        ("first", "a start that is no valid row"), ("sequence", "return"),
    ],
)  # fmt: skip
def test_the_oracle_tells_a_wrong_replay_apart(wrong: str, told: str) -> None:
    spec = LAYOUTS["stacked frames"] if wrong == "first" else VECTOR
    made, source = replay(spec, n=2 if wrong == "n" else 3), Source(Actor(spec, ROWS, ENVS))
    for k in range(12):
        if wrong == "sequence" and k % 3 == 0:
            source.actors[0].unroll()
        unroll, rows = source.actors[0].unroll()
        if wrong == "terminated":
            unroll["truncated"][...] |= unroll["terminated"]
            unroll["terminated"][...] = False
        elif wrong == "sequence":
            unroll["header"][0] = k
        elif wrong != "n":
            unroll[wrong][...] = wrong == "valid"
        made.insert(Experience(0, unroll, lambda: None))
        for kept, new in zip(source.rows[0], rows, strict=True):
            kept.extend(new)
    assert told in mistakes(draw(made), source, 3)
