"""``accel.verify``: check that a bundle is complete and that this machine computes its test vectors, and measure
latency.

A bundle is untrusted data (``run_policy`` says what is checked before anything acts on it). Its models are executed by
onnxruntime or OpenVINO, on Linux with memory by their size; only the command limits their time. Its C sources are
executed only with ``run_native_check``, its ``run_policy.py`` never. Checksums detect damage, not forgery.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from accel.errors import BundleError, MissingExtraError
from accel.exporting import run_policy
from accel.exporting.appearing import partial_of
from accel.exporting.formats import FORMATS, NATIVE_FORMATS, make_format
from accel.json_object import Json
from accel.system.machine import cpu_name

_MAX_REPORT_BYTES = 2**26


@dataclass(frozen=True)
class Verification:
    """The result of checking a bundle on this machine.

    Attributes:
        path: the bundle. scheme, format: what it holds.
        vectors: ``rows`` compared, ``relative`` and ``greatest`` difference, the ``bound`` on the former.
        tested: what was run for vectors and latency.
        latency: microseconds a call at batch 1: ``p50_us``, ``p95_us``, ``p99_us``; ``calls`` measured.
        exported: the same on the machine that exported the bundle.
        cpu: this machine's processor.
        check: what the bundle's own check program printed here; None where it has none, or none was run.
    """

    path: Path
    scheme: str
    format: str
    tested: str
    vectors: Json
    latency: Json
    exported: Json
    cpu: str
    check: str | None = None

    def text(self) -> str:
        """The findings in a few lines."""
        ours, theirs, vectors = self.latency, self.exported, self.vectors
        program = "" if self.check is None else f"\nits check program, compiled and run here: {self.check}"
        return (
            f"{self.path}: {self.scheme} as {self.format}, every file is whole\n"
            f"{vectors['rows']} test vectors on {self.tested}: relative difference {vectors['relative']:.2e} of at "
            f"most {vectors['bound']:g}, greatest {vectors['greatest']:.2e}\n"
            f"one observation takes p50 {ours['p50_us']:.1f}, p95 {ours['p95_us']:.1f}, p99 {ours['p99_us']:.1f} µs on "
            f"{self.cpu}; p50 {theirs['p50_us']:.1f} µs where it was exported"
            f"{program}"
        )

    def to_json(self) -> Json:
        """A plain JSON object."""
        return {**vars(self), "path": str(self.path)}


def verify(bundle: Path, *, run_native_check: bool = False) -> Verification:
    """Check a bundle where it is going to run: checksums, contract, CPU, test vectors; measure latency.

        import accel
        from pathlib import Path
        print(accel.verify(Path("cartpole-int8")).text())

    The bundle's own ``run_policy.py --verify`` does the same without this package, on onnxruntime.

    Args:
        bundle: the directory that ``export`` wrote.
        run_native_check: compile and run the sources of a C bundle, with this process's rights: only for a bundle that
            you trust. Without it, the bundle's ONNX model is held to the test vectors instead.
    Raises:
        BundleError: a file is missing or damaged, the contract is not one, the CPU lacks what the model assumes, or
            outputs differ from the test vectors by more than their bound.
        MissingExtraError: the bundle's format needs a package that is not installed; for native checks, a compiler.
    """
    if not bundle.exists() and partial_of(bundle).exists():
        raise BundleError(f"there is no {bundle} yet: an export to it is running, or was killed (then export again)")
    if not bundle.is_dir():
        what = "is no directory" if bundle.exists() else "does not exist"
        raise BundleError(f"{bundle} {what}: give the one that accel export wrote")
    if not (bundle / run_policy.CONTRACT).exists() and (bundle / "config.toml").exists():
        raise BundleError(f"{bundle} is not a bundle, it is a run: accel export {bundle} --out BUNDLE makes one of it")
    try:
        contract = run_policy.read_contract(bundle)
        return _verify(bundle, contract, run_native_check)
    except run_policy.BundleError as error:
        raise BundleError(str(error)) from error


def _verify(bundle: Path, contract: run_policy.Contract, run_native_check: bool) -> Verification:
    name = str(contract["target"]["format"])
    is_skipped = name in NATIVE_FORMATS and not run_native_check
    if name not in FORMATS:
        raise BundleError(f"the contract of {bundle} has the unknown format {name!r}: this version knows {FORMATS}")
    try:
        target = make_format("onnx" if is_skipped else name, writing=False)
    except MissingExtraError as error:
        raise MissingExtraError(f"every file of {bundle} is whole, but the policy was not run: {error}") from error
    if target.runs_onnx:
        run_policy.check_cpu(contract)
    with run_policy.bounded_memory(bundle, contract):
        session = target.session(bundle, contract, 1)
        vectors = run_policy.check_vectors(session, bundle, contract)
        latency = run_policy.measure_latency(session)[0]
    skipped = f" (the {name} sources were not run; --run-native-check compiles and runs them)" if is_skipped else ""
    return Verification(
        path=bundle,
        scheme=str(contract["scheme"]),
        format=name,
        tested=f"{target.name}{skipped}",
        vectors=vectors,
        latency=dict(latency),
        exported=exported_latency(bundle),
        cpu=cpu_name(),
        check=target.check(bundle),
    )


def exported_latency(bundle: Path) -> Json:
    """Microseconds a call on the machine that exported. Raises BundleError."""
    try:
        report = run_policy.parse_json(run_policy.read_file(bundle / run_policy.REPORT, _MAX_REPORT_BYTES))
        figures = {name: float(report["latency"]["model"][name]) for name in ("p50_us", "p95_us", "p99_us", "calls")}
        if not all(0 < figure < math.inf for figure in figures.values()):
            raise ValueError("a latency is not positive and finite")
        return dict(figures)
    except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BundleError(f"{bundle / run_policy.REPORT} is not the report of an export: {error!r}") from error
