#!/usr/bin/env python3
"""Runs the policy of the bundle that this file lies in. Needs Python 3.10 or newer, numpy and onnxruntime, no more.

    python run_policy.py --verify          check every file, the test vectors and this machine; measure latency
    python run_policy.py                   answer observations from standard input, one JSON object a line

A line such as {"observation": [0.1, 0.2], "first": true} is answered by {"action": 1, "params": [...]}; "first" begins
an episode.
A Dict observation is an object by the names of the model's inputs: {"observation": {"image": [...], "goal": [...]}}.
In a program of your own:

    from run_policy import Policy
    policy = Policy("path/of/this/bundle")
    action, params = policy.act(observation, first=True)

What is trusted: this program treats every file of the bundle as untrusted data. The contract may name only plain files
of the bundle and known settings, sizes are checked before memory is taken, models that refer to other files are
refused, and only onnxruntime executes a model. On Linux it gets memory by the model's size, and --verify ends after ten
minutes. Checksums find damage, not forgery: they do not say who made a bundle. Policy.act sets no limits; use it on
bundles that you trust.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import platform
import re
import stat
import struct
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Array = NDArray[np.generic]
Contract = dict[str, Any]
FORMAT, FORMAT_VERSION = "accel-bundle", 3
_ROUNDING = float(np.finfo(np.float32).eps)
_ALLOWED_ABOVE = -5e8  # what tells values of allowed actions from those of others
CONTRACT, SUMS, REPORT = "contract.json", "SHA256SUMS", "report.json"
_FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_SUM_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_FILE_NAME})\n")
KEYS = {
    *("format_version", "scheme", "target", "files", "model", "fp32", "inputs", "outputs", "vectors", "action"),
    "recurrent_state",
}
# what a bundle may ask for; far above any policy
_MAX_FILES, _MAX_MODEL_BYTES, _MAX_JSON_BYTES, _MAX_JSON_DEPTH = 64, 2**31, 2**22, 32
_MAX_TENSORS, _MAX_RANK, _MAX_ELEMENTS, _MAX_ROWS, _MAX_VECTORS_BYTES = 64, 8, 2**24, 4096, 2**30
# what a model may take: so much, and so many times the bytes of the bundle's models and test vectors
_SPARE_BYTES, _COPIES = 2**30, 8
_MAX_VERIFY_S = 600.0
_ZIP_END, _MAX_DIRECTORY_BYTES = struct.Struct("<4s8xL4xH"), 2**18
_NPY_MAGIC, _NPY_HEADER_BYTES = b"\x93NUMPY\x01\x00", 1024
_DTYPES = {"float32": "tensor(float)", "uint8": "tensor(uint8)"}
_FLAG = {"0", "1"}
_SESSION_OPTIONS = {
    "session.disable_quant_qdq": _FLAG,
    "session.intra_op.allow_spinning": _FLAG,
    "session.inter_op.allow_spinning": _FLAG,
    "session.set_denormal_as_zero": _FLAG,
}
# how ONNX refers to another file: an entry whose first field, of 8 bytes, is "location"; varints may have spare bytes
_LOCATION = b"location"
_LOCATION_ENTRY = re.compile(
    rb"(?:\x0a|\x8a[\x80-\xff]*[\x00-\x7f])(?:\x08|\x88[\x80-\xff]*[\x00-\x7f])location", re.DOTALL
)
_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class BundleError(Exception):
    """The bundle is damaged, incomplete, or not for this machine."""


class PolicySession(Protocol):
    """A model loaded for a fixed batch: write ``inputs``, call ``run``, read ``outputs``."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def run(self) -> None:
        """Read ``inputs``, fill ``outputs``."""


class OnnxSession:
    """A ``PolicySession`` on onnxruntime, one thread, with arrays that are allocated once and bound."""

    def __init__(self, bundle: Path, contract: Contract, batch: int, part: str = "model") -> None:
        """Args: part: ``model`` for the compressed one, ``fp32`` for full precision. Raises BundleError."""
        wanted = contract[part]
        self._path = wanted["path"]
        model = read_file(bundle / self._path, _MAX_MODEL_BYTES)
        if refers_to_files(model):
            raise BundleError(f"{self._path} refers to data in other files, which is refused: export the policy again")
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = _LEVELS[wanted["graph_optimisation"]]
        options.log_severity_level = 4  # every error is raised as well
        for key, value in wanted["session_options"].items():
            options.add_session_config_entry(key, value)
        try:
            with bounded_memory(bundle, contract):
                self._session = ort.InferenceSession(
                    model, options, providers=["CPUExecutionProvider"], enable_fallback=0
                )
        except Exception as error:
            raise BundleError(f"onnxruntime {ort.__version__} cannot load {self._path}: {error}") from error
        try:
            for kind, found in (("inputs", self._session.get_inputs()), ("outputs", self._session.get_outputs())):
                self._check_tensors(contract[kind], found, kind, batch)
        except UnicodeDecodeError as error:  # onnxruntime hands names on as they are
            raise BundleError(f"{self._path} has names that are no text: {error}") from error
        self._binding = self._session.io_binding()
        self.inputs: Mapping[str, Array] = empty_arrays(contract["inputs"], batch)
        self.outputs: Mapping[str, Array] = empty_arrays(contract["outputs"], batch)
        for name, array in self.inputs.items():
            self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in self.outputs.items():
            self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _check_tensors(self, specs: list[Contract], found: list[ort.NodeArg], kind: str, batch: int) -> None:
        """The same names and types in the same order, and sizes that fit."""
        wanted = [(spec["name"], _DTYPES[spec["dtype"]], _with_batch(spec["shape"], batch)) for spec in specs]
        fits = [(tensor.name, tensor.type) for tensor in found] == [(name, kind) for name, kind, _ in wanted]
        fits = fits and all(
            len(tensor.shape) == len(shape)
            and all(
                not isinstance(theirs, int) or theirs == ours for theirs, ours in zip(tensor.shape, shape, strict=True)
            )
            for tensor, (_, _, shape) in zip(found, wanted, strict=True)
        )
        if not fits:
            raise BundleError(f"{self._path} has other {kind} than the contract says")

    def run(self) -> None:
        """See ``PolicySession``. Raises BundleError."""
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise BundleError(f"{self._path} does not compute what the contract says: {error}") from error


class Policy:
    """The policy, one observation at a time, its recurrent state included."""

    def __init__(self, bundle: str | Path | None = None, *, sample: bool = False, seed: int = 0) -> None:
        """Args: bundle: the directory, this file's when None. sample: draw actions instead of the most likely ones."""
        path = Path(__file__).parent if bundle is None else Path(bundle)
        self.contract = read_contract(path)
        if sample and self.contract["action"]["sampling"]["rule"] == "greedy":
            raise BundleError("this policy always takes the most likely action, as its outputs are no distribution")
        check_cpu(self.contract)
        self._session = OnnxSession(path, self.contract, 1)
        self._rng = np.random.default_rng(seed) if sample else None
        self._states = [(state["input"], state["output"]) for state in self.contract["recurrent_state"]]

    def act(self, observation: object, *, first: bool = False) -> tuple[Array, Array]:
        """What to do: (the action as the environment takes it, the distribution's parameters [P]).

        Args: observation: as the contract says, of a Dict a dictionary by the names of the model's inputs; first: it
            begins an episode.
        """
        session = self._session
        for wanted, value in self._named(observation):
            array = as_observation(value, wanted["dtype"])
            if list(array.shape) != wanted["shape"][1:]:
                raise ValueError(
                    f"the observation's {wanted['name']} has shape {list(array.shape)}, the policy takes "
                    f"{wanted['shape'][1:]}"
                )
            session.inputs[wanted["name"]][0] = array
        for source, _ in self._states:
            if first:
                session.inputs[source][...] = 0
        session.run()
        for source, following in self._states:
            session.inputs[source][...] = session.outputs[following]
        params = session.outputs[self.contract["outputs"][0]["name"]][0].copy()
        return choose_action(params, self.contract["action"], self._rng), params

    def _named(self, observation: object) -> list[tuple[Contract, object]]:
        """The inputs of an observation with their values: of a Dict observation one for each of its parts."""
        count = len(self.contract["inputs"]) - len(self._states)
        specs = self.contract["inputs"][:count]
        if not isinstance(observation, Mapping):
            if count > 1:
                raise ValueError(f"the observation is no dictionary of {', '.join(spec['name'] for spec in specs)}")
            return [(specs[0], observation)]
        if missing := [spec["name"] for spec in specs if spec["name"] not in observation]:
            raise ValueError(f"the observation lacks {', '.join(missing)}")
        return [(spec, observation[spec["name"]]) for spec in specs]


def as_observation(observation: object, dtype: str) -> Array:
    """An observation's numbers as the policy takes them. Raises ValueError unless all are finite numbers in range."""
    try:
        given = np.asarray(observation)
        if given.dtype.kind not in "biuf":
            raise ValueError
    except ValueError:
        raise ValueError("the observation is not an array of numbers") from None
    with np.errstate(over="ignore", invalid="ignore"):
        array = given.astype(dtype)
    if not np.isfinite(array).all():
        raise ValueError("the observation has numbers that are not finite, or too great for single precision")
    if dtype == "uint8" and not np.array_equal(array, given):
        raise ValueError("the observation has numbers that are not integers from 0 to 255")
    return array


def choose_action(params: Array, action: Mapping[str, Any], rng: np.random.Generator | None) -> Array:
    """The environment's action from the policy's outputs [P]; the most likely one without ``rng``."""
    kind, sizes, sampling = action["kind"], action["sizes"], action["sampling"]
    if kind == "gaussian":
        size = sizes[0]
        value = np.array(params[:size], np.float64)
        low, high = (np.array([float(bound) for bound in action[side]]) for side in ("low", "high"))
        if rng is not None and sampling["rule"] == "distribution":
            log_std = params[size:].clip(*sampling.get("log_std", (-np.inf, np.inf)))
            value += np.exp(log_std) * rng.standard_normal(size)
        value = np.tanh(value) if action["squash"] else value
        if rng is not None and sampling["rule"] == "gaussian-noise":
            value = (value + sampling["noise"] * rng.standard_normal(size)).clip(-1.0, 1.0)
        value = (low + high) / 2 + value * (high - low) / 2 if action["squash"] else value
        return value.clip(low, high).astype(np.float32).reshape(action["shape"])
    logits = params[: sum(sizes)].astype(np.float64)
    if rng is not None and sampling["rule"] == "distribution":
        logits += rng.gumbel(size=logits.shape)
    elif rng is not None and rng.random() < sampling["epsilon"]:
        logits = np.where(logits > _ALLOWED_ABOVE, rng.random(logits.shape), _ALLOWED_ABOVE)
    parts = np.split(logits, np.cumsum(sizes)[:-1])
    indices = np.array([int(part.argmax()) for part in parts])
    return np.asarray(indices.reshape(action["shape"]) + np.asarray(action["start"]))


def empty_arrays(specs: list[Mapping[str, Any]], batch: int) -> dict[str, Array]:
    """Zeros for each tensor of the contract, with the batch filled in."""
    return {spec["name"]: np.zeros(_with_batch(spec["shape"], batch), spec["dtype"]) for spec in specs}


def _with_batch(shape: list[Any], batch: int) -> tuple[int, ...]:
    return tuple(batch if size == "batch" else size for size in shape)


def sums_text(sums: Mapping[str, str]) -> str:
    """What the list of checksums holds: the lines that ``sha256sum --check`` reads, by name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def read_file(path: Path, limit: int) -> bytes:
    """A plain file of at most ``limit`` bytes. Raises BundleError for links, pipes and devices, and OSError."""
    size = _plain_file_bytes(path)
    if size > limit:
        raise BundleError(f"{path} has {size:,} bytes, over the {limit:,} that such a file may have")
    with path.open("rb") as file:
        return file.read(size)


def _plain_file_bytes(path: Path) -> int:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{path} is a link, a directory or a device: a bundle has plain files only")
    return status.st_size


def sha256(path: Path) -> str:
    """The checksum of a plain file, in hexadecimal digits."""
    _plain_file_bytes(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def parse_json(content: bytes) -> dict[str, Any]:
    """A strict JSON object of bounded depth: no NaN, no infinity. Raises ValueError."""
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    layer: list[Any] = [value]
    for _ in range(_MAX_JSON_DEPTH):
        layer = [item for part in layer if isinstance(part, list | dict) for item in _items(part)]
    if layer:
        raise ValueError(f"it is nested more than {_MAX_JSON_DEPTH} deep")
    return value


def _items(part: list[Any] | dict[str, Any]) -> list[Any]:
    return list(part.values()) if isinstance(part, dict) else part


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def refers_to_files(model: bytes) -> bool:
    """Whether an ONNX model has data outside, in files that its maker chose; or, hardly ever, a tensor 'location'."""
    start = model.find(_LOCATION)
    while start >= 0:
        end = start + len(_LOCATION)
        if _LOCATION_ENTRY.search(model, max(0, start - 24), end):
            return True
        start = model.find(_LOCATION, end)
    return False


def read_contract(bundle: Path) -> Contract:
    """The contract, after every file's checksum was found right. Raises BundleError."""
    try:
        text = read_file(bundle / SUMS, _MAX_JSON_BYTES).decode("ascii")
        sums = {name: checksum for checksum, name in _SUM_LINE.findall(text)}
        if text != sums_text(sums) or CONTRACT not in sums or len(sums) > _MAX_FILES:
            raise BundleError(f"{bundle / SUMS} is damaged: copy the bundle again")
        for name, expected in sums.items():
            if sha256(bundle / name) != expected:
                raise BundleError(
                    f"{bundle / name} is damaged, or {SUMS} is: its checksum does not match; copy the bundle again"
                )
        extra = {path.name for path in bundle.iterdir()} - {*sums, SUMS, "__pycache__"}
        if extra:
            raise BundleError(
                f"{bundle} has files that are none of the bundle's: {', '.join(sorted(extra))}; remove them"
            )
        contract = parse_json(read_file(bundle / CONTRACT, _MAX_JSON_BYTES))
    except FileNotFoundError as error:
        raise BundleError(f"{bundle} is no complete bundle: {error.filename} is missing; copy it again") from error
    except (OSError, ValueError) as error:
        raise BundleError(f"{bundle} is no complete bundle: {error}") from error
    if contract.get("format") != FORMAT or not contract.keys() >= KEYS:
        raise BundleError(f"{bundle / CONTRACT} is not the contract of a bundle")
    if contract["format_version"] != FORMAT_VERSION:
        raise BundleError(f"the bundle has format {contract['format_version']!r}, this program reads {FORMAT_VERSION}")
    try:
        check_contract(contract)
        listed = {name: facts["sha256"] for name, facts in contract["files"].items()}
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BundleError(
            f"the contract of {bundle} is not one that this version understands: {_described(error)}"
        ) from error
    if {name: value for name, value in sums.items() if name != CONTRACT} != listed:
        raise BundleError(f"{bundle / SUMS} and {CONTRACT} list different files: copy the bundle again")
    return contract


def _described(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def check_contract(contract: Contract) -> None:
    """Hold a contract to what ``accel export`` writes, before anything acts on it.

    Raises ValueError, or LookupError, TypeError, AttributeError and OverflowError for values of another kind.
    """
    _require(_is_text(contract["scheme"], 2**16), "the scheme is no plain text")  # it may name every layer
    _require(_is_text(contract["target"]["format"]), "the target's format is no plain text")
    for kind in ("inputs", "outputs"):
        _check_specs(contract[kind], kind)
    first = contract["outputs"][0]
    _require(len(first["shape"]) == 2 and first["dtype"] == "float32", "the first output is no float32 [batch, P]")
    _check_action(contract["action"], first["shape"][1])
    _check_states(contract)
    for part in ("model", "fp32"):
        _require(contract[part]["path"] in contract["files"], f"the file of {part} is none of the bundle's")
        _require(contract[part]["graph_optimisation"] in _LEVELS, f"{part} has an unknown graph optimisation")
        for key, value in contract[part]["session_options"].items():
            _require(value in _SESSION_OPTIONS.get(key, ()), f"session option {key!r} = {value!r} is not allowed")
    features = contract["model"]["cpu_features"]
    _require(isinstance(features, list) and all(map(_is_text, features)), "the CPU features are no texts")
    vectors = contract["vectors"]
    _require(vectors["path"] in contract["files"], "the file of the test vectors is none of the bundle's")
    _require(_is_count(vectors["rows"], _MAX_ROWS), f"the test vectors have {vectors['rows']!r} rows")
    fits = _vectors_bytes(contract) <= _MAX_VECTORS_BYTES
    _require(fits, f"the test vectors have over {_MAX_VECTORS_BYTES:,} bytes")
    _require(_is_number(vectors["bound"]) and 0 < vectors["bound"] <= 1, "the bound is no number between 0 and 1")


def _vectors_bytes(contract: Contract) -> int:
    rows: int = contract["vectors"]["rows"]
    return rows * sum(_row_bytes(spec) for kind in ("inputs", "outputs") for spec in contract[kind])


def _row_bytes(spec: Contract) -> int:
    sizes: list[int] = spec["shape"][1:]
    return math.prod(sizes) * np.dtype(spec["dtype"]).itemsize


def _check_specs(specs: object, kind: str) -> None:
    """Tensors with distinct names, known types and bounded sizes."""
    if not isinstance(specs, list) or not 0 < len(specs) <= _MAX_TENSORS:
        raise ValueError(f"the {kind} are no list of tensors")
    for spec in specs:
        name, shape = spec["name"], spec["shape"]
        _require(_is_text(name) and spec["dtype"] in _DTYPES, f"one of the {kind} has a wrong name or type")
        is_shape = isinstance(shape, list) and 2 <= len(shape) <= _MAX_RANK and shape[0] == "batch"
        _require(
            is_shape and all(_is_count(size, _MAX_ELEMENTS) for size in shape[1:]),
            f"{name!r} has no shape that begins with the batch",
        )
        _require(math.prod(shape[1:]) <= _MAX_ELEMENTS, f"{name!r} has more than {_MAX_ELEMENTS:,} numbers a row")
    _require(len({spec["name"] for spec in specs}) == len(specs), f"two of the {kind} have one name")


def _check_action(action: Contract, params: int) -> None:
    """An action that distribution parameters [params] give."""
    kind, sizes, shape = action["kind"], action["sizes"], action["shape"]
    for name, counts in (("sizes", sizes), ("shape", shape)):
        _require(
            isinstance(counts, list) and all(_is_count(count, _MAX_ELEMENTS) for count in counts),
            f"the {name} of the action are no positive numbers",
        )
    _require(bool(sizes) and len(shape) <= _MAX_RANK, "the action has no sizes, or too many dimensions")
    count = {"categorical": 1, "multi_categorical": len(sizes), "gaussian": sizes[0]}.get(kind)
    _require(count == math.prod(shape), f"an action of kind {kind!r} with sizes {sizes} has not the shape {shape}")
    _check_sampling(action["sampling"], kind, sizes, params)
    _require(kind == "multi_categorical" or len(sizes) == 1, f"an action of kind {kind!r} has one size")
    if kind == "gaussian":
        low, high = ([float(bound) for bound in action[side]] for side in ("low", "high"))
        ordered = len(low) == len(high) == count and all(a <= b for a, b in zip(low, high, strict=True))
        _require(ordered and isinstance(action["squash"], bool), "the bounds of the action are none")
        _require(not action["squash"] or all(map(math.isfinite, low + high)), "a squashed action without bounds")
    else:
        start = np.asarray(action["start"])
        is_start = start.dtype == np.int64 and start.shape in ((), tuple(shape)) and (np.abs(start) < 2**31).all()
        _require(bool(is_start), "the start of the action is no integer, or not one for each part")


def _check_sampling(sampling: Contract, kind: str, sizes: list[int], params: int) -> None:
    """How outputs [params] become a distribution of actions."""
    rule = sampling["rule"]
    if rule == "gaussian-noise":
        fits, noise = kind == "gaussian" and params == sizes[0], sampling["noise"]
        _require(_is_number(noise) and 0 <= noise <= 2, "the noise of the actions is no number up to 2")
    elif rule == "epsilon-greedy":
        fits, epsilon = kind == "categorical" and params in (sizes[0], sizes[0] + 1), sampling["epsilon"]
        _require(_is_number(epsilon) and 0 <= epsilon <= 1, "the share of random actions is no number up to 1")
    else:
        _require(rule in {"distribution", "greedy"}, "actions are chosen by a rule that this program does not know")
        fits = params == (2 * sizes[0] if kind == "gaussian" else sum(sizes))
        bounds = sampling.get("log_std", [0, 0])
        _require(
            isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_number, bounds)) and bounds[0] <= bounds[1],
            "the bounds of log_std are none",
        )
    _require(fits, "the first output does not fit the action")


def _check_states(contract: Contract) -> None:
    """The last inputs are the recurrent states, each of which one output follows; at least one comes before them."""
    inputs, outputs = ({spec["name"]: spec for spec in contract[kind]} for kind in ("inputs", "outputs"))
    states = [(state["input"], state["output"]) for state in contract["recurrent_state"]]
    _require(
        len(states) < len(inputs)
        and [before for before, _ in states] == list(inputs)[len(inputs) - len(states) :]
        and [after for _, after in states] == list(outputs)[1:],
        "the recurrent states are not the last inputs, or not the outputs after the first",
    )
    for before, after in states:
        _require(
            [inputs[before][key] for key in ("dtype", "shape")] == [outputs[after][key] for key in ("dtype", "shape")],
            f"state {before!r} and its successor differ in shape",
        )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _is_text(value: object, longest: int = 1000) -> bool:
    return isinstance(value, str) and 0 < len(value) <= longest and value.isascii() and value.isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit


def check_cpu(contract: Contract) -> None:
    """Raise BundleError where this CPU is known to lack what the model's integer kernels assume."""
    needed = set(contract["model"]["cpu_features"])
    info = Path("/proc/cpuinfo")
    if not needed or not info.exists():
        return
    flags = set(re.findall(r"[\w]+", info.read_text()))
    found = {"arm"} if platform.machine().lower().startswith(("arm", "aarch64")) else {"avx2"} & flags
    if flags & {"avx512_vnni", "avx_vnni", "avx512vnni", "avxvnni"}:
        found.add("vnni")
    if needed - found:
        raise BundleError(
            f"the model's integer kernels assume {', '.join(sorted(needed - found))}, which this CPU lacks: its "
            "results would be wrong; export it for this CPU (accel export --cpu)"
        )


def load_vectors(bundle: Path, contract: Contract) -> tuple[dict[str, Array], dict[str, Array]]:
    """The test vectors: inputs by name [N, ...], expected outputs by name [N, ...]. Raises BundleError."""
    vectors = contract["vectors"]
    try:
        content = read_file(bundle / vectors["path"], _MAX_VECTORS_BYTES)
        _check_directory(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            inputs, outputs = (
                {spec["name"]: _read_array(archive, kind, spec, vectors["rows"]) for spec in contract[f"{kind}s"]}
                for kind in ("input", "output")
            )
    except (
        *(OSError, KeyError, ValueError, EOFError, RuntimeError, OverflowError),
        *(zipfile.BadZipFile, zlib.error, struct.error),
    ) as error:
        raise BundleError(f"the test vectors of {bundle} cannot be read: {error}") from error
    return inputs, outputs


def _check_directory(content: bytes) -> None:
    """Hold a ZIP archive's directory, of which zipfile makes an object for each entry, to the size of a bundle's."""
    end, locator_64 = content[-_ZIP_END.size :], content[-_ZIP_END.size - 20 : -_ZIP_END.size]
    if len(end) < _ZIP_END.size or locator_64.startswith(b"PK\x06\x07"):
        raise ValueError("it is no ZIP archive of few files")
    magic, size, comment_bytes = _ZIP_END.unpack(end)
    if magic != b"PK\x05\x06" or comment_bytes or size > _MAX_DIRECTORY_BYTES:
        raise ValueError("it is no ZIP archive of few files")


def _read_array(archive: zipfile.ZipFile, kind: str, spec: Contract, rows: int) -> Array:
    """One array of an .npz, of the type and shape that the contract says: nothing is allocated for another."""
    shape = (rows, *spec["shape"][1:])
    dtype = np.dtype(spec["dtype"])
    size = math.prod(shape) * dtype.itemsize
    info = archive.getinfo(f"{kind}/{spec['name']}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"'{spec['name']}' is compressed in an unknown way")
    with archive.open(info) as file:
        content = file.read(size + _NPY_HEADER_BYTES)
    start = len(_NPY_MAGIC) + 2
    end = start + int.from_bytes(content[start - 2 : start], "little")
    header = content[start:end].decode("latin-1").strip()
    wanted = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    if content[: start - 2] != _NPY_MAGIC or header != wanted or len(content) != end + size:
        raise BundleError(
            f"the contract says {list(shape)} {dtype} for the test vectors of '{spec['name']}', and they are "
            f"{header[:200]!r}: the bundle was changed; export it again"
        )
    return np.frombuffer(content, dtype, offset=end).reshape(shape)


@contextmanager
def bounded_memory(bundle: Path, contract: Contract) -> Iterator[None]:
    """Let this process take only as much more memory as a policy of the bundle's size may need; on Linux.

    Graphs of a few bytes can ask for any amount. Raises BundleError where that was too little.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    models = sum((bundle / contract[part]["path"]).stat().st_size for part in ("model", "fp32"))
    limit = pages * resource.getpagesize() + _SPARE_BYTES + _COPIES * (models + _vectors_bytes(contract))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = limit if soft == resource.RLIM_INFINITY else min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    except MemoryError:
        raise BundleError(f"{bundle} needs far more memory than its size explains, which is refused") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_rows(session: PolicySession, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs [N, ...] of inputs [N, ...], in portions of the session's batch, which divides N."""
    batch = len(next(iter(session.inputs.values())))
    rows = len(next(iter(inputs.values())))
    parts: dict[str, list[Array]] = {name: [] for name in session.outputs}
    for start in range(0, rows, batch):
        for name, array in session.inputs.items():
            array[...] = inputs[name][start : start + batch]
        session.run()
        for name, array in session.outputs.items():
            parts[name].append(array.copy())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def mismatch(found: Array, wanted: Array) -> tuple[float, float]:
    """(root mean square difference over the wanted output's spread, greatest difference).

    The spread is the root mean square deviation from the mean row; where all rows are the same but for rounding, the
    root mean square itself, or 1 where that is zero.

    Actions that a mask forbids have -1e9 in both, or the difference is enormous; they are no part of the deviation.
    """
    theirs = wanted.astype(np.float64)
    difference = found.astype(np.float64) - theirs
    error = float(np.sqrt(np.mean(np.square(difference))))
    return error / spread(wanted), float(np.abs(difference).max())


def spread(wanted: Array) -> float:
    """What a difference from an output [N, ...] is measured by; see ``mismatch``."""
    values = wanted.astype(np.float64)
    values = np.where(values > _ALLOWED_ABOVE, values, 0.0)
    deviation, size = (float(np.sqrt(np.mean(np.square(part)))) for part in (values - values.mean(axis=0), values))
    return (deviation if deviation > _ROUNDING * size else size) or 1.0


def check_vectors(session: PolicySession, bundle: Path, contract: Contract) -> dict[str, Any]:
    """Hold a session to the test vectors; returns ``rows``, ``relative``, ``greatest``. Raises BundleError."""
    inputs, expected = load_vectors(bundle, contract)
    found = run_rows(session, inputs)
    bound = float(contract["vectors"]["bound"])
    worst = {"rows": len(next(iter(inputs.values()))), "bound": bound, "relative": 0.0, "greatest": 0.0}
    for name, wanted in expected.items():
        with np.errstate(all="ignore"):  # vectors of others may be no numbers
            relative, greatest = mismatch(found[name], wanted)
        if not relative <= bound:
            raise BundleError(
                f"output '{name}' differs from the test vectors by {relative:.3g} of its spread ({greatest:.3g}), "
                f"over the bound of {bound:g}: this is not the policy that was exported"
            )
        worst["relative"] = max(worst["relative"], relative)
        worst["greatest"] = max(worst["greatest"], greatest)
    return worst


def measure_latency(*sessions: PolicySession, seconds: float = 0.5, calls: int = 2000) -> list[dict[str, float]]:
    """Microseconds a call of each session, measured in turns: ``p50_us``, ``p95_us``, ``p99_us``, ``calls``."""
    samples: list[list[int]] = [[] for _ in sessions]
    end = time.perf_counter() + seconds * len(sessions)
    for session in sessions:
        session.run()
    while len(samples[0]) < calls and (time.perf_counter() < end or not samples[0]):
        for session, durations in zip(sessions, samples, strict=True):
            for _ in range(20):
                start = time.perf_counter_ns()
                session.run()
                durations.append(time.perf_counter_ns() - start)
    quantiles = [np.quantile(np.array(durations) / 1000, (0.5, 0.95, 0.99)) for durations in samples]
    return [
        {"p50_us": float(q[0]), "p95_us": float(q[1]), "p99_us": float(q[2]), "calls": float(len(samples[0]))}
        for q in quantiles
    ]


def verify(bundle: Path) -> dict[str, Any]:
    """Check files, contract, machine and vectors, and measure latency at batch 1. Raises BundleError."""
    contract = read_contract(bundle)
    check_cpu(contract)
    with bounded_memory(bundle, contract):
        session = OnnxSession(bundle, contract, 1)
        vectors = check_vectors(session, bundle, contract)
        latency = measure_latency(session)[0]
    target = contract["target"]["format"]
    tested = f"{contract['model']['path']} on onnxruntime"
    note = "" if target in ("onnx", "ort") else f"; the files of target {target} were not run: MODEL_CARD.md says how"
    return {
        "scheme": contract["scheme"],
        "target": target,
        "tested": tested + note,
        "vectors": vectors,
        "latency": latency,
    }


def read_request(line: str) -> tuple[object, bool]:
    """(observation, first) of one line. Raises ValueError, which says what a line has to be."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError('the line is no JSON: give {"observation": [...], "first": true}') from None
    if not isinstance(request, dict) or "observation" not in request:
        raise ValueError('the line has no "observation": give {"observation": [...], "first": true}')
    first = request.get("first", False)
    if not isinstance(first, bool):
        raise ValueError(
            f'"first" is {json.dumps(first)[:40]}: give true where the observation begins an episode, or false'
        )
    return request["observation"], first


def answer(policy: Policy) -> None:
    """Standard input to standard output, line by line."""
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            observation, first = read_request(line)
            action, params = policy.act(observation, first=first)
            reply: dict[str, Any] = {"action": action.tolist(), "params": params.tolist()}
        except ValueError as error:
            reply = {"error": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Parse, do, print; the exit status is 1 for a damaged bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", action="store_true", help="check files, test vectors and this machine")
    parser.add_argument("--bundle", type=Path, default=Path(__file__).parent, help="default: where this file lies")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.add_argument("--seed", type=int, default=0, help="of --sample")
    options = parser.parse_args(arguments)
    if options.seed < 0:
        parser.error(f"--seed {options.seed}: give a seed of at least 0")
    try:
        if options.verify:
            with _bounded_time():
                print(json.dumps(verify(options.bundle), indent=2))
            return 0
        policy = Policy(options.bundle, sample=options.sample, seed=options.seed)
        with bounded_memory(options.bundle, policy.contract):
            answer(policy)
    except BundleError as error:
        print(f"run_policy: {_printable(error)}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _bounded_time() -> Iterator[None]:
    """End the process where the block takes longer than a policy's check may."""

    def end() -> None:
        os.write(2, f"run_policy: the bundle's model took longer than {_MAX_VERIFY_S:g} s\n".encode())
        os._exit(1)

    timer = threading.Timer(_MAX_VERIFY_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _printable(error: Exception) -> str:
    """Without control characters: a bundle may hold any text."""
    return "".join(character for character in str(error) if character.isprintable() or character == "\n")


if __name__ == "__main__":
    sys.exit(main())
