"""What sweeps search and weigh: quantities, fronts, choices layer by layer, files of search spaces."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.compressors.pipeline import make_compressor
from accel.compressors.scheme import parse_scheme
from accel.errors import ConfigError
from accel.sweep.objectives import AFTER_TRAINING, choose_metrics, parse_constraint
from accel.sweep.pareto import Candidate, front
from accel.sweep.scheme_space import SchemeSpace
from accel.sweep.search import BITS, CandidateOptions
from accel.sweep.sweep_file import load_sweep_file
from tests.accel.sweep.sweeping import RETURN_AND_BYTES
from tests.compressors.policies import CASES, randomise

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("text", "reference", "bound", "met", "missed"),
    [
        ("return>=0.95*fp32", 400.0, 380.0, 380.0, 379.0),
        ("return >= 0.95 * fp32", -20.0, -21.0, -21.0, -21.5),
        ("return>=.95*fp32", 0.0, 0.0, 0.0, -0.1),
        ("latency<=0.5*fp32", 10.0, 5.0, 5.0, 5.1),
        ("bytes<=4e3", 9000.0, 4000.0, 3999.0, 4001.0),
    ],
)
def test_a_constraint_is_met_on_its_side_of_the_bound(
    text: str, reference: float, bound: float, met: float, missed: float
) -> None:
    constraint = parse_constraint(text, AFTER_TRAINING)
    references = {constraint.metric: reference}
    assert constraint.bound(references) == pytest.approx(bound)
    assert constraint.violation(met, references) <= 1e-9
    assert constraint.violation(missed, references) > 0
    assert parse_constraint(constraint.text, AFTER_TRAINING) == constraint


def test_a_constraint_that_means_nothing_says_what_it_should_be() -> None:
    for text in ("return>1", "return>=0.9*int8", "return>=high", "return>=nan", "return>=1e", ""):
        with pytest.raises(ConfigError, match=r"is not of the form NAME>=NUMBER, .*such as return>=0.95\*fp32"):
            parse_constraint(text, AFTER_TRAINING)
    with pytest.raises(ConfigError, match=r"unknown constraint on 'retrun' .did you mean 'return'"):
        parse_constraint("retrun>=1", AFTER_TRAINING)


def test_objectives_are_known_and_each_once() -> None:
    assert [q.name for q in choose_metrics(["bytes", "return"], AFTER_TRAINING)] == ["bytes", "return"]
    for names, message in (([], "at least one"), (["byte"], "did you mean 'bytes'"), (["bytes"] * 2, "each once")):
        with pytest.raises(ConfigError, match=message):
            choose_metrics(names, AFTER_TRAINING)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_a_front_is_what_nobody_beats(points: list[tuple[int, int]]) -> None:
    rows = [Candidate(i, f"{a}/{b}", {"return": float(a), "bytes": float(b)}) for i, (a, b) in enumerate(points)]
    found = {(row.values["return"], row.values["bytes"]) for row in front(rows, RETURN_AND_BYTES, ())}
    expected = {
        (a, b) for a, b in points if not any(c >= a and d <= b and (c, d) != (a, b) for c, d in points)
    }  # more return and fewer bytes are better
    assert found == expected
    best = front(rows, RETURN_AND_BYTES, ())
    assert len({row.label for row in best}) == len(best)


def test_infeasible_rows_are_no_trade_off() -> None:
    constraint = parse_constraint("return>=0.9*fp32", AFTER_TRAINING)
    rows = [
        Candidate(i, str(i), {"return": r, "bytes": 1.0}, {}, {"return": 100.0})
        for i, r in enumerate((50.0, 80.0, 95.0))
    ]
    assert [row.number for row in front(rows, RETURN_AND_BYTES, (constraint,))] == [2]


def test_a_row_that_misses_a_constraint_takes_no_feasible_one_s_place() -> None:
    objective, bound = AFTER_TRAINING["return"], parse_constraint("bytes<=20000", AFTER_TRAINING)
    figures = [(480.0, 21_000.0), (400.0, 19_000.0)]
    rows = [Candidate(i, str(i), {"return": r, "bytes": b}) for i, (r, b) in enumerate(figures)]
    assert [row.number for row in front(rows, [objective], [bound], slack=0.1)] == [0, 1]
    assert [row.number for row in front(rows, [objective], [bound])] == [1]


def space_of(case: str, options: CandidateOptions | None = None) -> SchemeSpace:
    module = randomise(CASES[case].make(), 1)
    return SchemeSpace(CASES[case].layers(module), options or CandidateOptions())


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["deep-relu-mlp", "nature-cnn", "lstm"])
def test_every_choice_of_a_single_layer_makes_a_scheme_that_binds(case: str) -> None:
    module, space = randomise(CASES[case].make(), 1), space_of(case)
    schemes = set()
    for name, distribution in space.parameters.items():
        values = distribution.choices  # type: ignore[attr-defined]
        schemes |= {space.scheme_of({name: value}) for value in values}
    bound = {CASES[case].bind(scheme, module, rows=16).refresh(module, 1).scheme for scheme in schemes}
    assert len(bound) == len(schemes) > 8


def test_suggested_schemes_are_read_back_and_cover_the_space() -> None:
    space = space_of("deep-relu-mlp")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    schemes = {space.scheme_of(study.ask(dict(space.parameters)).params) for _ in range(60)}
    assert len(schemes) > 55
    for scheme in schemes:
        assert make_compressor(scheme).scheme == scheme == str(parse_scheme(scheme))
    text = " ".join(schemes)
    assert all(part in text for part in ("int8", "int4", "float", "prune(", "lowrank(", ")+prune("))


def test_uniform_schemes_come_in_their_short_form() -> None:
    space = space_of("deep-relu-mlp")
    names = [layer.name for layer in space.layers]
    every = {f"bits/{name}": "int8" for name in names}
    assert space.scheme_of({}) == "fp32"
    assert space.scheme_of(every) == "int8(x8)"
    assert space.scheme_of(dict.fromkeys(every, "int4")) == "int4"
    assert space.scheme_of({**every, f"bits/{names[0]}": "fp32"}) == f"int8(x8,{names[0]}=float)"
    assert space.scheme_of({f"prune/{name}": 0.5 for name in names[:-1]}) == "prune(0.5)"
    queued = list(space.uniform())
    study = optuna.create_study()
    for parameters in queued:
        study.enqueue_trial(dict(parameters))
    first = [space.scheme_of(study.ask(dict(space.parameters)).params) for _ in queued]
    assert first[: len(BITS)] == ["fp32", "int8(x8)", "int4"]
    assert first[len(BITS) :] == ["prune(0.25)", "prune(0.25)+int8(x8)"]


def test_the_order_of_pruning_and_factoring_is_a_choice() -> None:
    space = space_of("deep-relu-mlp")
    name = space.layers[1].name
    both = {f"prune/{name}": 0.5, f"rank/{name}": 0.25}
    assert space.scheme_of(both) == f"prune({name}=0.5)+lowrank({name}=0.25)"
    assert space.scheme_of({**both, "order": "lowrank+prune"}) == f"lowrank({name}=0.25)+prune({name}.1=0.5)"
    module = randomise(CASES["deep-relu-mlp"].make(), 1)
    for order in ("prune+lowrank", "lowrank+prune"):
        CASES["deep-relu-mlp"].bind(space.scheme_of({**both, "order": order}), module).refresh(module, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CandidateOptions.create({"prune": ()}), "prune = .*at least 1 item"),
        (lambda: CandidateOptions.create({"prune": (1.0,)}), "prune = 1.0: .*less than 1"),
        (lambda: CandidateOptions.create({"rank": (0.0,)}), "rank = 0.0: .*greater than 0"),
        (lambda: CandidateOptions.create({"bits": ["int9"]}), "bits = 'int9': .*'int8'"),
        (lambda: CandidateOptions.create({"max_kl": float("nan")}), "max_kl = nan"),
        (lambda: space_of("relu-mlp", CandidateOptions(bits=("fp32",), prune=(0,), rank=(1,))), "the space is empty"),
    ],
)
def test_a_space_without_choices_is_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


_FILE = '[train]\nenv = "CartPole-v1"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_FILE, "the space is empty"),
        (_FILE + '[space.lerning_rate]\ntype = "float"\nlow = 1e-4\nhigh = 1e-2\n', "did you mean 'learning_rate'"),
        (_FILE + '[space.name]\ntype = "categorical"\nchoices = ["a"]\n', "there is no such field"),
        (_FILE + '[space.learning_rate]\ntype = "flot"\n', "'flot'.*'float', 'int', 'categorical'"),
        (_FILE + '[space.learning_rate]\ntype = "float"\nlow = 1e-4\n', "high: field required"),
        (_FILE + '[space.learning_rate]\ntype = "float"\nlow = 1.0\nhigh = 0.1\n', "low"),
        (_FILE + '[space.learning_rate]\ntype = "float"\nlow = -1.0\nhigh = 0.1\n', "learning_rate.*greater than 0"),
        (
            _FILE + '[space.learning_rate]\ntype = "float"\nlow = 0.1\nhigh = 0.2\nlgo = true\n',
            "lgo: extra inputs",
        ),
        (_FILE + '[space.unroll_length]\ntype = "int"\nlow = 0.5\nhigh = 4\n', "low: input should be a valid integer"),
        (_FILE + '[space.compressor]\ntype = "categorical"\nchoices = []\n', "choices: .*at least 1"),
        (_FILE + '[space.compressor]\ntype = "categorical"\nchoices = ["int8", "int9"]\n', "int9"),
        (_FILE + '[space.corrector]\ntype = "categorical"\nchoices = ["vtrace", "best"]\n', "corrector"),
        ('[tarin]\nenv = "CartPole-v1"\n', "unknown table or key 'tarin' .did you mean 'train'"),
        ('[train]\nenvv = "CartPole-v1"\n', "did you mean 'env'"),
        ('[train]\nname = "x"\n', "is set by the sweep"),
        ("[train\n", "not valid TOML"),
    ],
)
def test_a_bad_file_gets_one_clear_message(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_sweep_file(file)


def test_a_file_s_space_sets_fields_of_valid_configurations(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[train]\npreset = "quickstart"\nactors = 0\n'
        '[space.learning_rate]\ntype = "float"\nlow = 1e-4\nhigh = 1e-2\nlog = true\n'
        '[space.unroll_length]\ntype = "int"\nlow = 8\nhigh = 32\nstep = 8\n'
        '[space.compressor]\ntype = "categorical"\nchoices = ["fp32", "prune(0.5)+int8"]\n'
    )
    loaded = load_sweep_file(file)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    configs = [loaded.configure(study.ask(dict(loaded.space)).params) for _ in range(20)]
    assert {config.acting.unroll_length for config in configs} == {8, 16, 24, 32}
    assert {config.compression.compressor for config in configs} == {"fp32", "prune(0.5)+int8"}
    assert all(1e-4 <= config.optimiser.learning_rate <= 1e-2 and config.acting.actors == 0 for config in configs)
