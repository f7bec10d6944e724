#!/usr/bin/env python
"""What int8 keeps of policies that others trained: actions, returns, bytes and time, beside onnxruntime's quantisation.

    python scripts/evidence/foreign_policies.py --policies DIRECTORY        (half an hour)

DIRECTORY has files of Stable-Baselines3 as ALGORITHM-ENVIRONMENT.zip, with ALGORITHM-ENVIRONMENT-normaliser.npz beside
those that were trained with VecNormalize. Arms: ``published``, rounded to the nearest as actors in training get it;
``int8`` of a finished policy; and the best of ``quantize_static``'s calibrations, by the same rows, on the same
observations. Actions are compared on rows of other episodes, returns over 20 greedy episodes of equal seeds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.rows import provenance  # noqa: E402
from accel.compressors.artifact import CompressedPolicy  # noqa: E402
from accel.compressors.cpu import VNNI, cpu_features  # noqa: E402
from accel.compressors.runtime import PolicySession, session_options  # noqa: E402
from accel.config import TrainConfig  # noqa: E402
from accel.errors import AccelError  # noqa: E402
from accel.exporting.standard_operators import standard_float  # noqa: E402
from accel.imports.policy import ImportedPolicy, import_policy  # noqa: E402
from accel.runs.finishing import finish  # noqa: E402
from accel.runs.fp32_comparison import time_in_turns  # noqa: E402
from accel.runs.playing import Episodes, Policy, play  # noqa: E402
from accel.runs.quality import (  # noqa: E402
    Quality,
    Returns,
    RowQuality,
    calibration_inputs,
    compare_actions,
    judged_inputs,
    measure_rows,
)
from accel.runs.trained_policy import Inputs  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.timing import torch_threads  # noqa: E402
from scripts.evidence.samples import arguments, read_samples, write_samples  # noqa: E402

ENVIRONMENTS = {
    "HalfCheetah-v3": "HalfCheetah-v5",
    "Humanoid-v3": "Humanoid-v4",
    "Swimmer-v3": "Swimmer-v5",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}
CALIBRATIONS = {method.name: method for method in CalibrationMethod if method.name != "Distribution"}
# another seed than the one by which margins and splits of `finish` were set
EPISODES, SEED, ROUNDS, ROUND_S = 20, 1, 40, 0.003
_ABOUT = """
`python scripts/evidence/foreign_policies.py --policies DIRECTORY`, on DLR-RM's rl-trained-agents (MIT); every return
is in `rows.json.gz`. Actions are compared with fp32's on 2,048 rows of the policy's own episodes and 2,048 of episodes
with a fifth of random actions, none of which calibrated: the share of equal greedy actions, or the action error in the
mean / for 99 % of the numbers, in % of the range; own · random. The bar is 99 %, or 1 / 5 %, and a loss of at most 5 %
of the gain over random play. Returns are means of 20 greedy episodes of equal seeds. µs are of one observation a call,
with fp32's on the same runtime in brackets: compiled kernels for ours, onnxruntime for `quantize_static`, whose best
calibration by the same rows is shown (a scale for each output). `published` is what an actor gets in training, rounded
to the nearest. Of `int8` the shares of multiply-adds in integers are given, after the observations and of all, and the
layers' forms; `mixed` is what int8 does not pay for. Margins were set on rows of another seed; all rows are of one
commit. Times compare within a row.
""".strip().splitlines()
Row = dict[str, Any]


def main() -> None:
    """Measure the files that are missing, and write the page."""
    parser = arguments(__doc__, "foreign-policies")
    parser.add_argument("--policies", type=Path, required=True)
    options = parser.parse_args()
    samples = options.out / "rows.json.gz"
    rows: list[Row] = read_samples(samples).get("rows", [])
    for path in sorted(options.policies.glob("*.zip")):
        if path.stem in {row["file"] for row in rows}:
            continue
        with torch_threads():
            rows += [row | provenance() for row in measure(path)]
        write_samples(samples, {"rows": rows})
    write_atomically(options.out / "README.md", ("\n".join(page(rows)) + "\n").encode())
    print((options.out / "README.md").read_text())


def measure(path: Path) -> Iterator[Row]:
    """A row of each arm; one that says why where the policy cannot be read or played."""
    name = path.stem.partition("-")[2]
    normaliser = path.with_name(f"{path.stem}-normaliser.npz")
    config = TrainConfig.create(env=ENVIRONMENTS.get(name, name))
    try:
        run = import_policy(path, config, normaliser=normaliser if normaliser.exists() else None)
    except AccelError as error:
        yield {"file": path.stem, "arm": "refused", "why": str(error).partition(":")[0].replace(str(path), path.name)}
        return
    inputs, judged, full = calibration_inputs(run, "int8", SEED), judged_inputs(run, SEED), run.compress("fp32")
    plan = run.compressor("int8").bind(
        run.policy, run.example_inputs, inputs, output_names=run.policy.output_names, metadata=run.metadata
    )
    finished = finish(run, "int8", inputs)
    arms = {"published": plan.refresh(run.policy, 0), "int8": finished.artifact}
    played = play(full, run, episodes=EPISODES, seed=SEED)
    by_chance = play(full, run, episodes=EPISODES, seed=SEED, random_share=1.0)
    turns = time_in_turns([full, *arms.values()], inputs, 1, rounds=ROUNDS, round_s=ROUND_S)
    times = [float(median) for median in np.median(turns, axis=1)]
    yield {
        "file": path.stem, "arm": "fp32", "bytes": len(full.to_bytes()), "us": times[0],
        "returns": played.returns.tolist(), "random": by_chance.returns.tolist(),
    }  # fmt: skip
    for (arm, artifact), us in zip(arms.items(), times[1:], strict=True):
        quality = measure_rows(run, artifact, judged, full)
        row = {"file": path.stem, "arm": arm, "bytes": len(artifact.to_bytes()), "us": us}
        if arm == "int8":
            row |= {
                "called": finished.artifact.scheme,
                "encoding": finished.encoding,
                "share": finished.share,
                "share_inside": finished.share_inside,
            }
        yield row | _judged(run, artifact, quality, played, by_chance)
    yield {"file": path.stem, "arm": "quantize_static"} | _static(run, full, inputs, judged, played, by_chance)


def _judged(
    run: ImportedPolicy, policy: Policy, rows: Sequence[RowQuality], full: Episodes, by_chance: Episodes
) -> Row:
    returns = Returns(play(policy, run, episodes=EPISODES, seed=SEED), full, by_chance, SEED, True, "")
    quality = Quality("int8", tuple(rows), returns)
    return {
        "rows": [asdict(row) for row in rows], "returns": returns.episodes.returns.tolist(),
        "verdict": returns.verdict, "holds": quality.holds,
    }  # fmt: skip


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._left = [dict(inputs)]

    def get_next(self) -> Mapping[str, Any] | None:
        return self._left.pop() if self._left else None


class _Static:
    """An ``InPlaceSession`` of a quantised model."""

    def __init__(self, model: bytes, like: CompressedPolicy, batch: int) -> None:
        self._session = ort.InferenceSession(model, session_options("all"), ["CPUExecutionProvider"])
        shapes = PolicySession(like, batch=batch)
        self.inputs, self.outputs = shapes.inputs, shapes.outputs

    def run(self) -> None:
        for array, found in zip(self.outputs.values(), self._session.run(None, dict(self.inputs)), strict=True):
            array[...] = found


def _static(
    run: ImportedPolicy,
    full: CompressedPolicy,
    inputs: Inputs,
    judged: Mapping[str, Inputs],
    played: Episodes,
    by_chance: Episodes,
) -> Row:
    found: dict[str, tuple[float, bytes, list[RowQuality]]] = {}
    wanted = {name: _Static(_float(full), full, len(next(iter(rows.values())))) for name, rows in judged.items()}
    for method, calibration in CALIBRATIONS.items():
        model = _quantised(_float(full), inputs, calibration)
        rows = []
        for name, feeds in judged.items():
            sessions = (wanted[name], _Static(model, full, len(next(iter(feeds.values())))))
            outputs = [_answers(session, feeds) for session in sessions]
            rows.append(compare_actions(run, *outputs, inputs=name))
        found[method] = max(row.excess for row in rows), model, rows
    method = min(found, key=lambda name: found[name][0])
    _, model, rows = found[method]
    session = _Static(model, full, 1)
    us = _time_us(session)
    row = {"calibration": method, "bytes": len(model), "us": us, "fp32_us": _time_us(_Static(_float(full), full, 1))}
    return row | _judged(run, lambda batch: _Static(model, full, batch), rows, played, by_chance)


def _float(full: CompressedPolicy) -> bytes:
    made: bytes = standard_float(onnx.load_from_string(full.model)).SerializeToString()
    return made


def _quantised(model: bytes, inputs: Inputs, method: CalibrationMethod) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "fp32.onnx", Path(place) / "int8.onnx"
        source.write_bytes(model)
        quantize_static(
            source, target, _Reader({name: a[: len(a) // 2] for name, a in inputs.items()}), calibrate_method=method,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
            reduce_range=VNNI not in cpu_features(),
        )  # fmt: skip
        return target.read_bytes()


def _answers(session: _Static, feeds: Inputs) -> npt.NDArray[np.float32]:
    for name, array in feeds.items():
        session.inputs[name][...] = array
    session.run()
    return np.array(next(iter(session.outputs.values())), np.float32)


def _time_us(session: _Static) -> float:
    samples = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(50):
            session.run()
        samples.append((time.perf_counter() - start) / 50 * 1e6)
    return float(np.median(samples))


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The table."""
    yield "# Policies that others trained, in int8"
    yield ""
    yield from _ABOUT
    yield ""
    yield "| policy (return of fp32, at random) | arm | actions | holds | return | bytes (fp32) | µs (fp32) |"
    yield "|---|---|---|---|---:|---:|---:|"
    for file in dict.fromkeys(row["file"] for row in rows):
        own = {row["arm"]: row for row in rows if row["file"] == file}
        if "refused" in own:
            yield f"| {file} | – | {own['refused']['why']} | | | | |"
            continue
        full = own.pop("fp32")
        name = f"{file} ({np.mean(full['returns']):.4g}, {np.mean(full['random']):.4g})"
        for arm, row in own.items():
            yield f"| {name if arm == 'published' else ''} | {' | '.join(_cells(row, full))} |"
    yield ""
    machines = sorted({f"{row['cpu']}, onnxruntime {row['onnxruntime']}" for row in rows})
    commits = dict.fromkeys(str(row["commit"])[:10] for row in rows)
    yield f"{'; '.join(machines)}; commits {', '.join(commits)}."


def _cells(row: Row, full: Row) -> Iterator[str]:
    about = f" ({row['calibration']})" if "calibration" in row else ""
    if "encoding" in row:
        layers = row["encoding"].removeprefix("int8(").strip(")").replace("module.", "")
        about = f" ({row['share_inside']:.0%}, {row['share']:.0%}; {layers})"
    yield f"`{row.get('called', row['arm'])}`{about}"
    yield " · ".join(map(_figures, row["rows"]))
    yield "yes" if row["holds"] else "no"
    yield f"{np.mean(row['returns']):.4g}"
    yield f"{row['bytes']:,} ({full['bytes']:,})"
    yield f"{row['us']:.3g} ({row.get('fp32_us', full['us']):.3g})"


def _figures(row: Mapping[str, Any]) -> str:
    if row["agreement"] is not None:
        return f"{100 * row['agreement']:.1f} %"
    return f"{100 * row['mean_error']:.2f} / {100 * row['tail_error']:.1f}"


if __name__ == "__main__":
    main()
