"""How many actors feed one learner, when the network binds, what int8 and its refresh period change: a simulation.

    python scripts/simulate/scaling.py --check       predictions beside kept runs of one learner and one actor (seconds)
    python scripts/simulate/scaling.py               the same, and predictions up to 10,000 actors (some minutes)

Costs are those of kept runs in results/evidence, what their actors and learners took by phase, and of a learner
with a hundred light actors over TCP (``results/evidence/fleet``): what a copy of a policy, and an unroll, take of its
processor. Writes ``OUT/checked.json.gz``, ``predictions.json.gz`` and ``scaling.svg``; see docs/scaling.md.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from pipeline import Costs, Prediction, Setting, simulate  # noqa: E402

from scripts.evidence.samples import EVIDENCE, arguments, read_samples, write_samples  # noqa: E402

CASES = (
    "cartpole", "lunarlander", "halfcheetah", "halfcheetah-speed", "halfcheetah-512x3-one-env",
    "halfcheetah-512x3-four-envs", "halfcheetah-2048x3-one-env",
)  # fmt: skip
TOLERANCE = 0.15
"""A prediction of environment steps per second that misses by more is not believed."""

SUBJECTS = {"512×3": "halfcheetah-512x3-one-env", "2048×3": "halfcheetah-2048x3-one-env"}
ACTORS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 3000, 10_000)
LEARNERS = (1, 10, 100)
"""How many times faster than the measured learner, which is one core; all but the first are assumed."""
LINKS = {"1 Gbit/s": 1.25e8, "10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10}
INTERVALS = (1, 4, 16, 64)
BATCH_UNROLLS, ACTORS_A_NODE = 32, 16
UNROLL_BYTES = 85_376
"""Of 512 steps of one HalfCheetah-v5, by ``UnrollLayout``."""
PARAMETERS = {"512×3": 537_606, "2048×3": 8_443_910}
BYTES_A_PARAMETER = {"fp32": 4, "int8": 1}
RELAY_LOOK_S, RELAY_BYTES_PER_S = 5e-3, 1e9
"""How soon the ranks of a node look, and how fast one copies a policy to the others: assumed."""
FLEET_ACTORS, UNSETTLED = 100, 2
"""Of the fleet's rows: how many actors, and how many publications come before all follow their relays."""
_ACTING = ("env", "policy", "overhead", "send")
_LOADING = ("pull", "deserialise", "load")
_UPDATING = ("batch", "forward", "correct", "backward", "record")


def main() -> None:
    """Check, and predict where that is asked for."""
    parser = arguments(__doc__, "simulate")
    parser.add_argument("--check", action="store_true", help="compare with kept runs only")
    options = parser.parse_args()
    runs = list(kept_runs())
    rows = [checked(case, run, runs) for case, run in runs]
    write_samples(options.out / "checked.json.gz", {"rows": rows})
    for case in CASES:
        print(case, *(summarise(rows, case, which) for which in ("own_costs", "other_seeds")), sep=" | ")
    if not options.check:
        found = list(predictions())
        write_samples(options.out / "predictions.json.gz", {"rows": found})
        draw(found, options.out / "scaling.svg")


def kept_runs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Runs of one learner and one actor that were not interrupted, with their case."""
    for case in CASES:
        document = read_samples(EVIDENCE / case / "runs.json.gz")
        yield from ((case, run) for run in document["runs"].values() if run["starts"] == 1)


def stretches(run: Mapping[str, Any]) -> list[dict[str, float]]:
    """A run's seconds by phase from record to record, with the unrolls learned from and the time gone by.

    Without the first, in which ranks join and caches and threads are cold.
    """
    columns, summary = run["columns"], run["summary"]
    steps_per_unroll = summary["env_steps"] / (summary["updates"] * run["config"]["batch_unrolls"])
    shares = [name for name in columns if name.startswith(("learner_", "actor_")) and name.endswith("_share")]
    found, seconds, last_s, last_steps = [], Counter[str](), 0.0, 0
    for row in range(len(columns["env_steps"])):
        elapsed_s, steps = columns["elapsed_s"][row], columns["env_steps"][row]
        seconds["elapsed"] += elapsed_s - last_s
        for name in shares:
            seconds[name.removesuffix("_share")] += (columns[name][row] or 0.0) * (elapsed_s - last_s)
        last_s = elapsed_s
        if steps > last_steps:
            learned = steps - last_steps
            found.append({**seconds, "env_steps": learned, "unrolls": learned / steps_per_unroll})
            seconds.clear()
            last_steps = steps
    return found[1:]


def costs_of(run: Mapping[str, Any], during: Sequence[Mapping[str, float]]) -> Costs:
    """A run's costs by its own phases; taking unrolls in is free, as waiting is not told from it."""
    config = run["config"]
    total = {name: sum(stretch[name] for stretch in during) for name in during[0]}
    unrolls = total["unrolls"]
    publications = unrolls / (config["batch_unrolls"] * config["publish_interval_updates"])
    return Costs(
        unroll_s=sum(total[f"actor_{phase}"] for phase in _ACTING) / unrolls,
        load_s=sum(total[f"actor_{phase}"] for phase in _LOADING) / publications,
        take_s=0.0,
        update_s=sum(total[f"learner_{phase}"] for phase in _UPDATING) / unrolls,
        refresh_s=total["learner_compress"] / publications,
        post_s=total["learner_publish"] / publications,
        unroll_bytes=0.0,
        policy_bytes=0.0,
        unroll_env_steps=total["env_steps"] / unrolls,
    )


def middle(runs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Medians of the costs of runs."""
    rows = [asdict(costs_of(run, stretches(run))) for run in runs]
    return {name: median(row[name] for row in rows) for name in rows[0]}


def checked(case: str, run: Mapping[str, Any], runs: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, object]:
    """A kept run beside what is predicted from its own costs, from record to record, and from those of the same
    variant's other seeds."""
    config, during = run["config"], stretches(run)
    setting = Setting(1, config["batch_unrolls"], config["publish_interval_updates"], config["unrolls_in_flight"])
    elapsed_s = sum(stretch["elapsed"] for stretch in during)
    steps = [stretch["env_steps"] for stretch in during]
    parts = [simulate(costs_of(run, [stretch]), setting, 200) for stretch in during]
    took_s = [count / part.env_steps_per_s for count, part in zip(steps, parts, strict=True)]
    variant = run["name"].rpartition("-")[0]
    others = [o for c, o in runs if c == case and o is not run and o["name"].rpartition("-")[0] == variant]
    elsewhere = simulate(Costs(**middle(others)), setting, 600)

    def waiting(which: str) -> float:
        return sum(stretch[f"{which}_wait"] for stretch in during) / elapsed_s

    measured = Prediction(
        sum(steps) / elapsed_s, waiting("learner"), waiting("actor"), 0.0, 0.0, run["summary"]["lag"]["lag_mean"]
    )
    predicted = {
        name: sum(asdict(part)[name] * seconds for part, seconds in zip(parts, took_s, strict=True)) / sum(took_s)
        for name in asdict(measured)
    }
    return {
        "case": case,
        "run": run["name"],
        "own_costs": predicted["env_steps_per_s"] / measured.env_steps_per_s,
        "other_seeds": elsewhere.env_steps_per_s / measured.env_steps_per_s,
        "measured": asdict(measured),
        "predicted": predicted,
    }


def summarise(rows: Iterable[Mapping[str, object]], case: str, which: str) -> str:
    """How many predictions of a case hold."""
    ratios = [float(str(row[which])) for row in rows if row["case"] == case]
    within = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
    return f"{which}: {within} of {len(ratios)} within {TOLERANCE:.0%}, {min(ratios):.2f} to {max(ratios):.2f}"


def subject_costs(subject: str, scheme: str) -> Costs:
    """Medians over a case's seeds, with bytes; an unroll taken in and a copy sent, with a hundred actors.

    What a run of one actor took for a publication, but for a copy, is what framing it once takes.
    """
    everything = list(kept_runs())
    runs = [run for case, run in everything if case == SUBJECTS[subject] and run["name"].startswith(f"{scheme}-")]
    costs, post_s = middle(runs), copy_s(f"{subject} {scheme}")
    policy_bytes = PARAMETERS[subject] * BYTES_A_PARAMETER[scheme]
    others = {
        "take_s": take_s(),
        "refresh_s": costs["refresh_s"] + max(costs["post_s"] - post_s, 0.0),
        "post_s": post_s,
        "relay_s": RELAY_LOOK_S + policy_bytes / RELAY_BYTES_PER_S,
        "unroll_bytes": UNROLL_BYTES,
        "policy_bytes": policy_bytes,
    }
    return Costs(**{**costs, **others})


def fleet_rows() -> list[dict[str, Any]]:
    """What was measured with a hundred actors over TCP."""
    rows = read_samples(EVIDENCE / "fleet" / "rows.json.gz")["rows"]
    return [row for row in rows if row["tcp"] and row["actors"] == FLEET_ACTORS and "left_out" not in row]


def take_s() -> float:
    """The learner's seconds for taking an unroll in."""
    return float(median(row["take_us"] for row in fleet_rows()) / 1e6)


def copy_s(policy: str) -> float:
    """The learner's seconds for one more copy of a policy, sent over TCP: with relays and without.

    Of one that was too large to be measured, what its bytes take at the rate of the largest that was.
    """
    measured = fleet_rows()
    cpu_us = {(r["policy"], r["relays"]): median(r["publish_cpu_us"][UNSETTLED:]) for r in measured}
    copies = FLEET_ACTORS - math.ceil(FLEET_ACTORS / measured[0]["actors_a_node"])
    sizes = {r["policy"]: r["bytes"] for r in measured}
    found = {
        name: float(max(cpu_us[name, False] - cpu_us[name, True], 0.0) / copies / 1e6)
        for name in sizes
        if (name, False) in cpu_us
    }
    largest = max(found, key=lambda name: sizes[name])
    return found[policy] if policy in found else found[largest] * sizes[policy] / sizes[largest]


def nodes(actors: int) -> int:
    """How many receive policies, where one a node does."""
    return math.ceil(actors / ACTORS_A_NODE)


def predictions() -> Iterator[dict[str, object]]:
    """Every point of the page, with what it was made from."""
    link = LINKS["10 Gbit/s"]
    for subject in SUBJECTS:
        for scheme in BYTES_A_PARAMETER:
            costs = subject_costs(subject, scheme)
            for faster in LEARNERS:
                for actors, shared in itertools.product(ACTORS, (True, False)):
                    receivers = nodes(actors) if shared else None
                    setting = Setting(actors, min(actors, BATCH_UNROLLS), 16, 1, link, receivers=receivers)
                    about = {"one_copy_a_node": shared, "faster": faster}
                    yield predict("actors", subject, scheme, speed_up(costs, faster), setting, **about)
            for name, rate in LINKS.items():
                for shared in (False, True):
                    receivers = nodes(1000) if shared else None
                    setting = Setting(1000, BATCH_UNROLLS, 1, link_bytes_per_s=rate, receivers=receivers)
                    about = {"link": name, "one_copy_a_node": shared, "faster": 100}
                    yield predict("link", subject, scheme, speed_up(costs, 100), setting, **about)
            for interval in INTERVALS:
                setting = Setting(1000, BATCH_UNROLLS, interval, link_bytes_per_s=link, receivers=nodes(1000))
                yield predict("interval", subject, scheme, speed_up(costs, 100), setting, faster=100)


def speed_up(costs: Costs, times: float) -> Costs:
    """A learner whose updates are faster; compressing, sending and taking in stay on its host."""
    return replace(costs, update_s=costs.update_s / times)


def predict(
    question: str, subject: str, scheme: str, costs: Costs, setting: Setting, **about: object
) -> dict[str, object]:
    """One point, simulated until every actor has sent some unrolls."""
    updates = max(60, math.ceil(3 * setting.actors / setting.batch_unrolls))
    found = simulate(costs, setting, updates)
    chosen = {**asdict(setting), "link_bytes_per_s": str(setting.link_bytes_per_s)}
    row = {"question": question, "subject": subject, "scheme": scheme, **about, "setting": chosen}
    print(row["question"], subject, scheme, about, setting.actors, setting.publish_interval, found, flush=True)
    return {**row, "costs": asdict(costs), "predicted": asdict(found)}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Steps per second by actors, for every learner, with and without relays."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scaling"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(SUBJECTS), figsize=(9.0, 3.6), layout="constrained", sharex=True)
    colours = dict(zip(LEARNERS, ("#7a7f87", "#1f6fb4", "#d9730d"), strict=True))
    for panel, subject in zip(panels, SUBJECTS, strict=True):
        for scheme, style in (("fp32", "--"), ("int8", "-")):
            for (faster, colour), shared in itertools.product(colours.items(), (True, False)):
                wanted = ("actors", subject, scheme, faster, shared)
                keys = ("question", "subject", "scheme", "faster", "one_copy_a_node")
                chosen = [row for row in rows if tuple(row.get(key) for key in keys) == wanted]
                x = [row["setting"]["actors"] for row in chosen]
                y = [row["predicted"]["env_steps_per_s"] for row in chosen]
                label = f"learner ×{faster}, {scheme}" if shared else None
                panel.loglog(x, y, style, color=colour, label=label, linewidth=1.6 if shared else 0.6)
        panel.set_title(f"HalfCheetah-v5, {subject}: predicted, not measured", fontsize=9)
        panel.set_xlabel("actors")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("environment steps/s")
    panels[0].legend(fontsize=7, frameon=False, loc="center right", bbox_to_anchor=(0.74, 0.26))
    figure.suptitle(f"thick: one copy of a policy for a node of {ACTORS_A_NODE} actors; thin: one for each", fontsize=9)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
