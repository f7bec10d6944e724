#!/usr/bin/env python
"""What int8 keeps of policies that others trained: actions, returns, bytes and time, beside other quantisers.

    pip install torchao
    python scripts/evidence/foreign_policies.py --policies DIRECTORY        (half an hour)

DIRECTORY has files of Stable-Baselines3 as ALGORITHM-ENVIRONMENT.zip, with ALGORITHM-ENVIRONMENT-normaliser.npz beside
those that were trained with VecNormalize; and others, ``.onnx`` and ``.pt``, whose environment is not here. Arms:
``published``, rounded to the nearest as actors in training get it; ``int8`` of a finished policy; the best of
``quantize_static``'s calibrations, by the same rows, on the same observations; and torchao's int8, which finds the
scales of activations while it runs. Actions are compared on rows of other episodes, returns over 20 greedy episodes of
equal seeds. A policy without an environment gets drawn observations: Gaussian, of the mean and deviation that its file
normalises with where it does, each row 0.9 times the last one and noise.
"""

from __future__ import annotations

import copy
import io
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
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
from accel.imports.policy_file import PolicyFile  # noqa: E402
from accel.runs.finishing import finish  # noqa: E402
from accel.runs.fp32_comparison import time_in_turns  # noqa: E402
from accel.runs.playing import Policy, play  # noqa: E402
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
# of drawn observations; the next is as far from the last one
DRAWN_ROWS, EPISODE, CORRELATION = 8192, 512, 0.9
_ABOUT = """
`python scripts/evidence/foreign_policies.py --policies DIRECTORY`, on DLR-RM's rl-trained-agents (MIT), and below them
on policies of robots and games whose environment is not here: go1 of mujoco_playground (Apache-2.0), g1 of
unitree_rl_gym (BSD-3, an LSTM), BallChase of godot_rl_agents_examples (MIT), and one policy of rsl_rl as checkpoint,
TorchScript and ONNX. These have drawn observations, Gaussian by the normaliser of the file, and no returns. Every
return is in `rows.json.gz`. Actions are compared with fp32's on 2,048 rows of the policy's own episodes and 2,048 of
episodes with a fifth of random actions, none of which calibrated, or on 4,096 drawn ones: the share of equal greedy
actions, or the action error in the mean / for 99 % of the numbers, in % of the range; own · random. The bar is 99 %, or
1 / 5 %, and a loss of at most 5 % of the gain over random play. Returns are means of 20 greedy episodes of equal seeds.
µs are of one observation a call, with fp32's on the same runtime in brackets: compiled kernels for ours, onnxruntime
for `quantize_static`, whose best calibration by the same rows is shown (a scale for each output), torch for torchao
(`Int8DynamicActivationInt8WeightConfig`: a scale for each row of activations). `published` is what an actor gets in
training, rounded to the nearest. Of `int8` the shares of multiply-adds in integers are given, after the observations
and of all, and the layers' forms; `mixed` is what int8 does not pay for. Margins were set on rows of another seed.
The machine had other work: times compare within a cell. A cell: actions; whether the bar holds;
return; bytes; µs.
""".strip().splitlines()
Row = dict[str, Any]


def main() -> None:
    """Measure the files that are missing, and write the page."""
    parser = arguments(__doc__, "foreign-policies")
    parser.add_argument("--policies", type=Path, required=True)
    options = parser.parse_args()
    samples = options.out / "rows.json.gz"
    rows: list[Row] = read_samples(samples).get("rows", [])
    files = [sorted(options.policies.rglob(f"*.{kind}")) for kind in ("zip", "onnx", "pt")]
    for path in (path for found in files for path in found):
        if _name(path) in {row["file"] for row in rows}:
            continue
        with torch_threads():
            rows += [{"file": _name(path)} | row | provenance() for row in measure(path)]
        write_samples(samples, {"rows": rows})
    write_atomically(options.out / "README.md", ("\n".join(page(rows)) + "\n").encode())
    print((options.out / "README.md").read_text())


def _name(path: Path) -> str:
    return path.stem if path.suffix == ".zip" else path.name


def measure(path: Path) -> Iterator[Row]:
    """A row of each arm; one that says why where the policy cannot be read or played."""
    try:
        run = _imported(path)
    except AccelError as error:
        yield {"arm": "refused", "why": str(error).partition(":")[0].replace(str(path), path.name)}
        return
    inputs, judged, full = calibration_inputs(run, "int8", SEED), judged_inputs(run, SEED), run.compress("fp32")
    published = run.bind("int8", inputs).refresh(run.policy, 0)
    arms = {"published": published, "int8": finish(run, "int8", inputs).artifact}
    games = None if run.recorded is not None else _Games(run, full)
    turns = time_in_turns([full, *arms.values()], inputs, 1, rounds=ROUNDS, round_s=ROUND_S)
    times = [float(median) for median in np.median(turns, axis=1)]
    yield {"arm": "fp32", "bytes": len(full.to_bytes()), "us": times[0]} | ({} if games is None else games.full)
    for (arm, artifact), us in zip(arms.items(), times[1:], strict=True):
        row: Row = {"arm": arm, "bytes": len(artifact.to_bytes()), "us": us}
        if arm == "int8":
            row |= {
                "called": artifact.scheme,
                "encoding": artifact.metadata["encoding"],
                "share": artifact.metadata["integer_share"],
                "share_inside": artifact.metadata["integer_share_after_observations"],
            }
        yield row | _judged(measure_rows(run, artifact, judged, full), games, artifact)
    yield {"arm": "quantize_static"} | _static(run, full, inputs, judged, games)
    yield {"arm": "torchao"} | _torchao(run, full, judged, games)


def _imported(path: Path) -> ImportedPolicy:
    if path.suffix == ".zip":
        name, normaliser = path.stem.partition("-")[2], path.with_name(f"{path.stem}-normaliser.npz")
        config = TrainConfig.create(env=ENVIRONMENTS.get(name, name))
        return import_policy(path, config, normaliser=normaliser if normaliser.exists() else None)
    mean, deviation = _spread(path)
    generator = np.random.default_rng(SEED)
    noise = generator.standard_normal((DRAWN_ROWS, len(mean)))
    first = np.arange(DRAWN_ROWS) % EPISODE == 0
    for row in np.flatnonzero(~first):
        noise[row] = CORRELATION * noise[row - 1] + np.sqrt(1 - CORRELATION**2) * noise[row]
    with tempfile.TemporaryDirectory() as place:
        rows = Path(place) / "rows.npz"
        np.savez(rows, observations=np.float32(mean + deviation * noise), first=first)
        return import_policy(path, TrainConfig.create(), observations=rows)


def _spread(path: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The mean and the deviation that a file normalises observations with; 0 and 1 where it does not."""
    if path.suffix == ".onnx":
        model = onnx.load(path)
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        first = {node.op_type: held[node.input[1]] for node in model.graph.node[:2] if node.input[-1] in held}
        width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        mean = first.get("Sub", np.zeros(width))
        deviation = 1.0 / first["Mul"] if "Mul" in first else first.get("Div", np.ones(width))
        return np.float64(mean).reshape(-1), np.float64(deviation).reshape(-1)
    try:
        tensors = dict(torch.jit.load(path).state_dict())  # type: ignore[no-untyped-call]
    except RuntimeError:
        tensors = PolicyFile(path).tensors("actor_state_dict")
    ends = ("weight_ih_l0", "0.weight", "_mean", "_std")
    memory, layer, *spread = (next((t for name, t in tensors.items() if name.endswith(end)), None) for end in ends)
    width = (layer if memory is None else memory).shape[1]  # type: ignore[union-attr]
    mean, deviation = (np.full(width, i) if t is None else t.numpy() for i, t in enumerate(spread))
    return np.float64(mean).reshape(-1), np.float64(deviation).reshape(-1)


class _Games:
    """Episodes of full precision and of random actions, and of others on the same seeds."""

    def __init__(self, run: ImportedPolicy, full: CompressedPolicy) -> None:
        self._run = run
        self._full = play(full, run, episodes=EPISODES, seed=SEED)
        self._random = play(full, run, episodes=EPISODES, seed=SEED, random_share=1.0)

    @property
    def full(self) -> Row:
        """Returns of full precision, and of random actions."""
        return {"returns": self._full.returns.tolist(), "random": self._random.returns.tolist()}

    def of(self, policy: Policy) -> Returns:
        """Returns of a policy beside them."""
        return Returns(play(policy, self._run, episodes=EPISODES, seed=SEED), self._full, self._random, SEED, True, "")


def _judged(rows: Sequence[RowQuality], games: _Games | None, policy: Policy) -> Row:
    returns = None if games is None else games.of(policy)
    row: Row = {"rows": [asdict(row) for row in rows], "holds": Quality("int8", tuple(rows), returns).holds}
    return row if returns is None else row | {"returns": returns.episodes.returns.tolist(), "verdict": returns.verdict}


class Once(CalibrationDataReader):  # type: ignore[misc]
    """One batch, then nothing."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._left = [dict(inputs)]

    def get_next(self) -> Mapping[str, Any] | None:
        """See onnxruntime."""
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


class _TorchAo:
    """An ``InPlaceSession`` of a module."""

    def __init__(self, module: torch.nn.Module, like: CompressedPolicy, batch: int) -> None:
        self._module, shapes = module, PolicySession(like, batch=batch)
        self.inputs, self.outputs = shapes.inputs, shapes.outputs

    def run(self) -> None:
        with torch.inference_mode():
            found = self._module(*map(torch.from_numpy, self.inputs.values()))
        for array, tensor in zip(self.outputs.values(), found, strict=True):
            array[...] = tensor.numpy()


_Session = _Static | _TorchAo


def _compared(
    run: ImportedPolicy, judged: Mapping[str, Inputs], full: CompressedPolicy, make: Callable[[int], _Session]
) -> list[RowQuality]:
    """Actions of sessions of so many rows beside full precision's."""
    rows = []
    for name, feeds in judged.items():
        count = len(next(iter(feeds.values())))
        sessions: list[_Session] = [_Static(_float(full), full, count), make(count)]
        rows.append(compare_actions(run, *(_answers(session, feeds) for session in sessions), inputs=name))
    return rows


def _static(
    run: ImportedPolicy,
    full: CompressedPolicy,
    inputs: Inputs,
    judged: Mapping[str, Inputs],
    games: _Games | None,
) -> Row:
    found: dict[str, tuple[float, bytes, list[RowQuality]]] = {}
    for method, calibration in CALIBRATIONS.items():
        model = _quantised(_float(full), inputs, calibration)
        rows = _compared(run, judged, full, partial(_Static, model, full))
        found[method] = max(row.excess for row in rows), model, rows
    method = min(found, key=lambda name: found[name][0])
    _, model, rows = found[method]
    times = [_time_us(_Static(each, full, 1)) for each in (model, _float(full))]
    row = {"calibration": method, "bytes": len(model), "us": times[0], "fp32_us": times[1]}
    return row | _judged(rows, games, partial(_Static, model, full))


def _torchao(run: ImportedPolicy, full: CompressedPolicy, judged: Mapping[str, Inputs], games: _Games | None) -> Row:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    module = copy.deepcopy(run.policy)
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    saved = io.BytesIO()
    torch.save(module.state_dict(), saved)  # noqa: TID251 - to be counted
    times = [_time_us(_TorchAo(each, full, 1)) for each in (module, run.policy)]
    row = {"bytes": saved.tell(), "us": times[0], "fp32_us": times[1]}
    make = partial(_TorchAo, module, full)
    return row | _judged(_compared(run, judged, full, make), games, make)


def _float(full: CompressedPolicy) -> bytes:
    made: bytes = standard_float(onnx.load_from_string(full.model)).SerializeToString()
    return made


def _quantised(model: bytes, inputs: Inputs, method: CalibrationMethod) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "fp32.onnx", Path(place) / "int8.onnx"
        source.write_bytes(model)
        quantize_static(
            source, target, Once({name: a[: len(a) // 2] for name, a in inputs.items()}), calibrate_method=method,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
            reduce_range=VNNI not in cpu_features(),
        )  # fmt: skip
        return target.read_bytes()


def _answers(session: _Session, feeds: Inputs) -> npt.NDArray[np.float32]:
    for name, array in feeds.items():
        session.inputs[name][...] = array
    session.run()
    return np.array(next(iter(session.outputs.values())), np.float32)


def _time_us(session: _Session) -> float:
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
    yield "| policy: return of fp32, at random; bytes | `published` | `int8` | `quantize_static` | torchao |"
    yield "|---|---|---|---|---|"
    for file in dict.fromkeys(row["file"] for row in rows):
        own = {row["arm"]: row for row in rows if row["file"] == file}
        if "refused" in own:
            yield f"| {file}: {own['refused']['why']} | | | | |"
            continue
        full = own.pop("fp32")
        played = f"{np.mean(full['returns']):.4g}, {np.mean(full['random']):.4g}; " if "returns" in full else ""
        cells = ("; ".join(_figures(row, full)) for row in own.values())
        yield f"| {file}: {played}{full['bytes']:,} | {' | '.join(cells)} |"
    yield ""
    machines = sorted({f"{row['cpu']}, onnxruntime {row['onnxruntime']}" for row in rows})
    commits = dict.fromkeys(str(row["commit"])[:10] for row in rows)
    yield f"{'; '.join(machines)}; commits {', '.join(commits)}."


def _figures(row: Row, full: Row) -> Iterator[str]:
    if "calibration" in row:
        yield str(row["calibration"])
    if "encoding" in row:
        layers = row["encoding"].removeprefix("int8(").strip(")").replace("module.", "").split(",")
        yield f"`{row['called']}`, {row['share_inside']:.0%}, {row['share']:.0%}, {', '.join(map(_shortened, layers))}"
    yield " · ".join(map(_difference, row["rows"]))
    yield "yes" if row["holds"] else "**no**"
    if "returns" in row:
        yield f"{np.mean(row['returns']):.4g}"
    yield f"{row['bytes']:,}"
    yield f"{row['us']:,.3g} ({row.get('fp32_us', full['us']):,.3g})"


def _shortened(layer: str) -> str:
    """The name of a layer, of a long one the end, and its form."""
    name, _, form = layer.partition("=")
    return f"{re.sub(r'_(Cast|BiasAdd).*', '', name)[-24:]}={form}"


def _difference(row: Mapping[str, Any]) -> str:
    if row["agreement"] is not None:
        return f"{100 * row['agreement']:.1f} %"
    return f"{100 * row['mean_error']:.2f} / {100 * row['tail_error']:.1f}"


if __name__ == "__main__":
    main()
