"""Does a population find a better policy than Optuna's trials in equal CPU-seconds?

    python scripts/evidence/population.py --seeds 5                  (about four minutes a seed on an idle core)
    python scripts/evidence/population.py --case lunarlander

On each seed a population of 4 trains 4 generations; then Optuna (TPE) runs whole trials of the same file until their
processes have used as many CPU-seconds, start-up included; the last trial may exceed them. Both take the policy with
the highest training return, which then plays 50 greedy episodes on seeds that neither has seen. Both begin with the
defaults of the algorithm. Each seed is added to ``OUT/CASE.json.gz``; given again, the command goes on.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from accel import evaluate, sweep_population, sweep_training

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.bench.rows import provenance
from accel.json_object import Json
from accel.sweep import SearchOptions
from scripts.evidence.samples import arguments, read_samples, write_samples

FILES = {
    "cartpole": Path(__file__).with_suffix(".toml"),
    "lunarlander": Path(__file__).with_name("population-lunarlander.toml"),
}
MEMBERS, GENERATIONS, EPISODES, UNSEEN = 4, 4, 50, 10_000


def main() -> None:
    """Measure what is missing of the seeds."""
    parser = arguments(__doc__, "population")
    parser.add_argument("--case", choices=list(FILES), default="cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    out = options.out / f"{options.case}.json.gz"
    rows = read_samples(out).get("rows", [])
    for seed in range(len(rows), options.seeds):
        with tempfile.TemporaryDirectory() as directory:
            rows.append(measure(FILES[options.case], seed, Path(directory)) | provenance())
        write_samples(out, {"rows": rows})
    for row in rows:
        print(row["seed"], row["population"], row["optuna"], sep="\n  ")


def measure(file: Path, seed: int, directory: Path) -> Json:
    """Both ways on one seed."""
    before = children_cpu_s()
    found = sweep_population(
        file, MEMBERS, GENERATIONS, SearchOptions(seed=seed, out=directory / "population"), command=()
    )
    budget_s = children_cpu_s() - before
    journal = [[[o.return_mean, dict(m.parameters)] for m, o in generation] for generation in found.generations]
    ours = {"cpu_s": budget_s, "runs": MEMBERS * GENERATIONS, **play(found.best), "generations": journal}
    shutil.rmtree(directory / "population")
    before, trials = children_cpu_s(), 0
    while children_cpu_s() - before < budget_s:
        trials += 1
        search = SearchOptions(seed=seed, out=directory / "optuna", trials=trials, objectives=("return",))
        front = sweep_training(file, search).front
    used_s = children_cpu_s() - before
    document = json.loads((directory / "optuna" / "pareto.json").read_text())
    best = next(trial for trial in document["trials"] if trial["trial"] == front[0].number)
    measured = [[trial["values"] and trial["values"]["return"], trial["parameters"]] for trial in document["trials"]]
    run = directory / "optuna" / "runs" / str(best["run"])
    return {
        "seed": seed, "population": ours,
        "optuna": {"cpu_s": used_s, "runs": trials, **play(run), "trials": measured},
    }  # fmt: skip


def play(run: Path) -> Json:
    """The training return of a run, and greedy returns of its policy."""
    summary = json.loads((run / "summary.json").read_text())
    returns = evaluate(run, episodes=EPISODES, seed=UNSEEN).episodes.returns
    return {"training_return": summary["return_mean"], "greedy_mean": float(returns.mean()), "greedy": returns.tolist()}


def children_cpu_s() -> float:
    """CPU-seconds of all ended children of this process, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
