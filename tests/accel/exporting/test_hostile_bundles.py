"""Bundles made to attack whoever verifies them: nothing is written, read elsewhere, run, or allocated without bound."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from accel.cli import main
from accel.errors import BundleError
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.exporting.verify import verify
from tests.accel.exporting.test_verify import resum
from tests.accel.runs.trained_runs import make_run
from tests.contracts.ranks import ROOT

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    run = make_run(directory / "runs", env="CartPole-v1", network="mlp:16x1", calibration_size=32)
    return export(run, directory / "bundle", scheme="fp32", episodes=0).path


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.optimized_model_filepath", "stolen"),
        ("optimized_model_filepath", "stolen"),
        ("session.profile_file_prefix", "stolen"),
        ("ep.context_enable", "1"),
        ("ep.context_file_path", "stolen"),
        ("session.model_external_initializers_file_folder_path", "/etc"),
        ("session.use_env_allocators", "1"),
        ("session.disable_quant_qdq", "2"),
        ("session.disable_quant_qdq", ["1"]),
    ],
)
def test_only_known_session_options_reach_onnxruntime(bundle: Path, tmp_path: Path, key: str, value: object) -> None:
    resum(bundle, lambda contract: contract["model"]["session_options"].update({key: value}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BundleError, match=r"is not allowed|not one that this version understands"):
        verify(bundle)
    assert run_policy.main(["--verify", "--bundle", str(bundle)]) == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert not any(isinstance(t, threading.Timer) and not t.finished.is_set() for t in threading.enumerate())


@pytest.mark.parametrize(
    "path", ["../model.onnx", "/etc/passwd", "./model.onnx", "a/model.onnx", "", ".", "..", 3, None]
)
@pytest.mark.parametrize("part", ["model", "fp32", "vectors"])
def test_only_files_in_the_list_of_checksums_are_named(bundle: Path, part: str, path: object) -> None:
    resum(bundle, lambda contract: contract[part].update(path=path))
    with pytest.raises(BundleError, match="none of the bundle's"):
        verify(bundle)


@pytest.mark.parametrize("name", ["model.onnx", "contract.json", "SHA256SUMS", "vectors.npz", "report.json"])
def test_links_pipes_and_directories_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    path, outside = bundle / name, Path(shutil.move(bundle / name, tmp_path / "outside"))
    for make in (lambda: path.symlink_to(outside), lambda: os.mkfifo(path), path.mkdir):
        path.unlink(missing_ok=True)
        make()
        with pytest.raises(BundleError, match="is a link, a directory or a device"):
            verify(bundle)


@pytest.mark.parametrize("name", ["..", ".", "../contract.json", "-rf", ".hidden", "a" * 200])
def test_the_list_of_checksums_names_plain_files_only(bundle: Path, name: str) -> None:
    path = bundle / "SHA256SUMS"
    path.write_text(path.read_text() + f"{'0' * 64}  {name}\n")
    with pytest.raises(BundleError, match="SHA256SUMS is damaged"):
        verify(bundle)


def moved_outside(content: bytes, location: str) -> onnx.ModelProto:
    """The model with its first initializer in another file."""
    model = onnx.load_from_string(content)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0")):
        tensor.external_data.add(key=key, value=value)
    return model


@pytest.mark.parametrize("location", ["weights.bin", "../../etc/passwd", "/etc/passwd", "*/_ORT_MEM_ADDR_/*"])
@pytest.mark.parametrize("is_spread", [False, True])
def test_models_that_refer_to_other_files_are_refused(bundle: Path, location: str, is_spread: bool) -> None:
    content = moved_outside((bundle / "model.onnx").read_bytes(), location).SerializeToString()
    if is_spread:  # the same message in more bytes: numbers of protocol buffers may be longer than needed
        entry = b"\x0a\x08location\x12" + bytes([len(location)]) + location.encode()
        longer = b"\x8a\x80\x00\x88\x00location\x12" + bytes([len(location)]) + location.encode()
        model = moved_outside((bundle / "model.onnx").read_bytes(), location)
        tensor = model.graph.initializer[0]
        del tensor.external_data[:]
        inner = tensor.SerializeToString() + b"\x6a" + bytes([len(longer)]) + longer
        assert TensorProto.FromString(inner).external_data[0].key == "location"
        content = content.replace(entry, b"")  # only what follows counts
        model.graph.initializer.remove(tensor)
        graph = model.graph.SerializeToString() + b"\x2a" + varint(len(inner)) + inner
        model.ClearField("graph")
        content = model.SerializeToString() + b"\x3a" + varint(len(graph)) + graph
        assert onnx.load_from_string(content).graph.initializer[-1].external_data[0].value == location
    (bundle / "model.onnx").write_bytes(content)
    resum(bundle)
    with pytest.raises(BundleError, match="refers to data in other files"):
        verify(bundle)


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def test_a_model_may_speak_of_a_location() -> None:
    """In names of layers, say, which weights and nodes get theirs from."""
    weight = numpy_helper.from_array(np.zeros((2, 2), np.float32), "location_head.weight")
    node = helper.make_node("MatMul", ["x", "location_head.weight"], ["y"], name="location")
    io_info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph([node], "location", io_info[:1], io_info[1:], [weight]))
    content = model.SerializeToString()
    assert b"location" in content and not run_policy.refers_to_files(content)
    assert run_policy.refers_to_files(moved_outside(content, "w").SerializeToString())


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "change",
    [
        lambda contract: contract["inputs"][0].update(shape=["batch", 2**40]),
        lambda contract: contract["inputs"][0].update(shape=["batch", *[2**20] * 5]),
        lambda contract: contract["inputs"][0].update(shape=["batch", -1]),
        lambda contract: contract["inputs"][0].update(shape=["batch", True]),
        lambda contract: contract["inputs"][0].update(shape=["batch", 4.0]),
        lambda contract: contract["inputs"][0].update(dtype="object"),
        lambda contract: contract["inputs"][0].update(dtype="S1000000000"),
        lambda contract: contract.update(inputs=contract["inputs"] * 1000),
        lambda contract: contract["vectors"].update(rows=2**40),
        lambda contract: contract["vectors"].update(rows="64"),
        lambda contract: contract["vectors"].update(bound=1e300),
        lambda contract: contract["vectors"].update(bound="inf"),
        lambda contract: contract["action"].update(sizes=[]),
        lambda contract: contract["action"].update(sizes=[2**60]),
        lambda contract: contract["action"].update(kind="gaussian"),
        lambda contract: contract["action"].update(shape=[2**30]),
        lambda contract: contract["action"].update(start=[[1], [2, 3]]),
        lambda contract: contract["action"].update(start="0"),
        lambda contract: contract["model"].update(graph_optimisation="layout"),
        lambda contract: contract["model"].update(session_options=[]),
        lambda contract: contract["model"].update(cpu_features="vnni"),
        lambda contract: contract["target"].update(format="exe"),
        lambda contract: contract["target"].update(format=["c"]),
        lambda contract: contract["files"].clear(),
        lambda contract: contract.update(scheme="\ud800"),
        lambda contract: contract.update(extra=nested(40)),
        lambda contract: contract.update(extra="x" * 2**23),
        *(lambda contract, key=key: contract.update({key: None}) for key in sorted(run_policy.KEYS - {"files"})),
    ],
)
def test_contracts_beyond_bounds_are_refused(bundle: Path, change: Change) -> None:
    resum(bundle, change)
    with pytest.raises(BundleError):
        verify(bundle)
    assert (
        run_policy.main(["--verify", "--bundle", str(bundle)]) == 1 or "exe" in (bundle / "contract.json").read_text()
    )


def test_deep_json_in_few_bytes_is_refused(bundle: Path) -> None:
    for text in ("[" * 200_000, '{"a":' * 200_000, "9" * 10_000, '{"a": NaN}', "[]", "\xff"):
        (bundle / "contract.json").write_bytes(text.encode("latin-1"))
        sums = {path.name: run_policy.sha256(path) for path in bundle.iterdir() if path.name != "SHA256SUMS"}
        (bundle / "SHA256SUMS").write_text(run_policy.sums_text(sums))
        with pytest.raises(BundleError):
            verify(bundle)


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/") + ".npy", content)
    return stream.getvalue()


HUGE = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4), }\n")
OBJECTS = npy("{'descr': '|O', 'fortran_order': False, 'shape': (64, 4), }\n", b"\x80\x04." * 100)
CODE = npy("__import__('os').abort()\n")


RIGHT = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (64, 4), }\n")


@pytest.mark.slow
def test_vectors_of_lying_headers_take_no_memory(bundle: Path, tmp_path: Path) -> None:
    """In a process that may have little more memory than it needs; one has 400 megabytes in as many kilobytes."""
    members = [HUGE, OBJECTS, CODE, RIGHT + bytes(3 * 2**27), b"", b"\x93NUMPY\x01\x00\xff\xff"]
    paths = [Path(shutil.copytree(bundle, tmp_path / str(number))) for number in range(len(members))]
    for path in paths:
        (path / "vectors.npz").write_bytes(archive(input__observations=members.pop(0)))
        assert (path / "vectors.npz").stat().st_size < 2**20
        resum(path)
    program = (
        "import resource, sys; from accel.exporting import run_policy;"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28,) * 2);"
        "sys.exit([run_policy.main(['--verify', '--bundle', path]) for path in sys.argv[1:]] != [1] * 6)"
    )
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("the test vectors of") == done.stderr.count("\n") == 6, done.stderr


ENTRY = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, *[0] * 8, 1, *[0] * 6) + b"a"
CROWD = ENTRY * 2**16


def ends(count: int, size: int, comment: bytes = b"") -> bytes:
    return struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, size, 0, len(comment)) + comment


@pytest.mark.parametrize(
    "end",
    [
        ends(2**16 - 1, len(CROWD)),
        ends(2**16 - 1, len(CROWD), b"!"),
        struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**16, 2**16, len(CROWD), 0)
        + struct.pack("<4sLQL", b"PK\x06\x07", 0, len(CROWD), 1)
        + ends(0, 0),
    ],
    ids=["plain", "comment", "zip64"],
)
def test_an_archive_of_a_crowd_of_entries_is_refused(bundle: Path, end: bytes) -> None:
    """Each of which takes zipfile ten times as much memory as it has bytes."""
    assert len(zipfile.ZipFile(io.BytesIO(CROWD + end)).infolist()) == 2**16
    (bundle / "vectors.npz").write_bytes(CROWD + end)
    resum(bundle)
    with pytest.raises(BundleError, match="no ZIP archive of few files"):
        verify(bundle)


def test_all_vectors_together_are_bounded(bundle: Path) -> None:
    """Four of them that fit one by one."""

    def enlarge(contract: dict[str, Any]) -> None:
        contract["vectors"].update(rows=4096)
        spare = {"name": "spare", "dtype": "float32", "shape": ["batch", 2**14]}
        contract["inputs"] = [{**spare, "name": f"spare{i}"} for i in range(4)] + contract["inputs"]

    resum(bundle, enlarge)
    with pytest.raises(BundleError, match="the test vectors have over 1,073,741,824 bytes"):
        verify(bundle)


# Tells which modules are asked for in vain, and whether they would have been found in the working directory.
ASKING = """
import os, sys
class Asked:
    def find_spec(name, path=None, target=None):
        if path is None:
            print("asked for", name, bool({"", os.getcwd()} & set(sys.path)))
sys.meta_path.append(Asked)
from accel.cli import main
sys.exit(main(["verify", "."]))
"""


def test_nothing_is_imported_from_the_directory_of_a_bundle(bundle: Path) -> None:
    """Not even what some library would import if only it were installed."""
    done = subprocess.run([sys.executable, "-P", "-c", ASKING], cwd=bundle, capture_output=True, text=True)
    asked = [line.split()[2:] for line in done.stdout.splitlines() if line.startswith("asked for")]
    assert done.returncode == 0 and asked, done.stderr
    assert not [name for name, would_be_found in asked if would_be_found == "True"]


def test_settings_of_openvino_are_known_ones(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    cache = tmp_path / "cache"
    resum(bundle, lambda contract: contract["target"].update(format="openvino", settings={"CACHE_DIR": str(cache)}))
    with pytest.raises(BundleError, match="other settings of OpenVINO"):
        verify(bundle)
    assert not cache.exists()


@pytest.mark.parametrize("name", [b"observations", b"batch"])
def test_names_that_are_no_text_are_refused(bundle: Path, name: bytes) -> None:
    content = (bundle / "model.onnx").read_bytes()
    assert name in content
    (bundle / "model.onnx").write_bytes(content.replace(name, b"\x80" * len(name)))
    resum(bundle)
    with pytest.raises(BundleError, match=r"has names that are no text|cannot load"):
        verify(bundle)


def test_a_report_that_is_none_is_refused(bundle: Path) -> None:
    for report in ({}, {"latency": {"model": dict.fromkeys(("p50_us", "p95_us", "p99_us", "calls"), "nan")}}):
        (bundle / "report.json").write_text(json.dumps(report))
        resum(bundle)
        with pytest.raises(BundleError, match="is not the report of an export"):
            verify(bundle)


BOMBS = {
    "filled": [helper.make_node("ConstantOfShape", ["many"], ["big"])],
    "repeated": [helper.make_node("Tile", ["one", "many"], ["big"])],
    "spread": [helper.make_node("Expand", ["one", "many"], ["big"])],
    "multiplied": [
        helper.make_node("Expand", ["one", "root"], ["row"]),
        helper.make_node("Reshape", ["row", "upright"], ["column"]),
        helper.make_node("Mul", ["column", "row"], ["square"]),
        helper.make_node("Reshape", ["square", "flat"], ["big"]),
    ],
}


def append(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    """Nodes that take the model's ``values`` and give its output."""
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["values" if output == name else output for output in node.output]
    model.graph.node.extend(nodes)


def bomb(content: bytes, nodes: list[onnx.NodeProto]) -> bytes:
    """The model, which computes the same, after it has made three or four gigabytes of numbers."""
    model = onnx.load_from_string(content)
    numbers = {"many": [3 * 2**28], "root": [2**15], "upright": [2**15, 1], "flat": [-1]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(n), key) for key, n in numbers.items())
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "one"))
    largest = helper.make_node("ReduceMax", ["big"], ["most"], keepdims=1)
    nothing = helper.make_node("Sub", ["most", "most"], ["nothing"])
    same = helper.make_node("Add", ["values", "nothing"], [model.graph.output[0].name])
    append(model, [*nodes, largest, nothing, same])
    return bytes(model.SerializeToString())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux, which limits a process's memory")
@pytest.mark.few(3)
@pytest.mark.parametrize("optimisation", ["none", "all"])
@pytest.mark.parametrize("kind", BOMBS)
def test_a_graph_that_asks_for_gigabytes_is_refused(bundle: Path, kind: str, optimisation: str) -> None:
    """Where it is run, and where it is optimised, which computes what is constant."""
    (bundle / "model.onnx").write_bytes(bomb((bundle / "model.onnx").read_bytes(), BOMBS[kind]))
    resum(bundle, lambda contract: contract["model"].update(graph_optimisation=optimisation))
    limits, before = resource.getrlimit(resource.RLIMIT_AS), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match=r"llocate|memory"):
        verify(bundle)
    line = json.dumps({"observation": [0.0] * 4, "first": True})
    program = [sys.executable, bundle / "run_policy.py"]
    done = subprocess.run(program, input=line, capture_output=True, text=True)
    assert done.returncode == 1 and "llocate" in done.stderr and "Traceback" not in done.stderr
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20, "kibibytes"
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize("command", ["accel", "run_policy"])
def test_a_model_that_never_ends_is_given_up(bundle: Path, command: str) -> None:
    """A loop has more turns than there is time for."""
    model = onnx.load_from_string((bundle / "model.onnx").read_bytes())
    kinds = {"turn": TensorProto.INT64, **dict.fromkeys(("go", "value", "on", "next"), TensorProto.BOOL)}
    infos = [helper.make_tensor_value_info(name, kind, []) for name, kind in kinds.items()]
    nodes = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Not", ["value"], ["next"])]
    body = helper.make_graph(nodes, "body", infos[:3], infos[3:])
    numbers = {"turns": np.array(2**62), "start": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(number, name) for name, number in numbers.items())
    model.graph.node.insert(0, helper.make_node("Loop", ["turns", "", "start"], ["end"], body=body))
    (bundle / "model.onnx").write_bytes(model.SerializeToString())
    resum(bundle)
    own = "import sys; import run_policy; run_policy._MAX_VERIFY_S = 1; sys.exit(run_policy.main(['--verify']))"
    programs = {"accel": ["-m", "accel", "verify", bundle, "--timeout-s", "1"], "run_policy": ["-c", own]}
    environment = {**os.environ, "PYTHONPATH": str(bundle if command == "run_policy" else ROOT)}
    done = subprocess.run([sys.executable, *programs[command]], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "(--timeout-s)" in done.stderr or "took longer than 1 s" in done.stderr


def test_a_model_of_other_shapes_than_the_contract_s_is_refused(bundle: Path) -> None:
    model = onnx.load_from_string((bundle / "model.onnx").read_bytes())
    places = helper.make_node("NonZero", ["values"], ["places"])
    rows = helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0])
    cast = helper.make_node("Cast", ["rows"], [model.graph.output[0].name], to=TensorProto.FLOAT)
    append(model, [places, rows, cast])
    (bundle / "model.onnx").write_bytes(model.SerializeToString())
    resum(bundle)
    with pytest.raises(BundleError, match="does not compute what the contract says"):
        verify(bundle)
    assert main(["verify", str(bundle)]) == 1
