"""Cost of each TensorBoard event writer for a learner: to import and open, and to write records.

    python scripts/evidence/event_writers.py > results/event_writers/rows.json      (a few minutes)

Every sample is a fresh process that has imported torch, as a learner has. ``start_cpu_ms`` is the CPU time of importing
and opening the writer, ``record_cpu_us`` that of one record of 40 scalars. CPU time is used because it depends less on
other load than wall-clock time does. Candidates are interleaved; a library that is not installed is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

from accel.bench.rows import provenance

ROUNDS = 5
SCALARS, RECORDS = 40, 200
_EVENTS = """
from tensorboard.compat.proto import event_pb2, summary_pb2
def event(step, values):
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=t, simple_value=v) for t, v in values.items()])
    return event_pb2.Event(wall_time=1.0, step=step, summary=summary)
"""
_SCALAR_CALLS = """
def add(step, values):
    for tag, value in values.items():
        writer.add_scalar(tag, value, step)
"""
CANDIDATES = {
    "ours": """
from pathlib import Path
from accel.monitor.event_file import EventFile
writer = EventFile(Path(directory))
def add(step, values): writer.add_scalars(1.0, step, values)
""",
    "tensorboard RecordWriter": f"""{_EVENTS}
from tensorboard.summary.writer.record_writer import RecordWriter
writer = RecordWriter(open(directory + "/events.out.tfevents.1", "xb"))
def add(step, values): writer.write(event(step, values).SerializeToString())
""",
    "tensorboard EventFileWriter": f"""{_EVENTS}
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(directory)
def add(step, values): writer.add_event(event(step, values))
""",
    "torch.utils.tensorboard": f"""
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(directory)
{_SCALAR_CALLS}""",
    "tensorboardX": f"""
from tensorboardX import SummaryWriter
writer = SummaryWriter(directory)
{_SCALAR_CALLS}""",
}
_PROGRAM = """
import json, sys, time, torch
directory, name = sys.argv[1:3]
before = set(sys.modules)
cpu_s, wall_s = time.process_time(), time.perf_counter()
{setup}
opened_cpu_s, opened_wall_s = time.process_time(), time.perf_counter()
for step in range({records}):
    add(step, {{f"group/metric{{i}}": float(i + step) for i in range({scalars})}})
writer.flush()
done_s = time.process_time()
print(json.dumps({{
    "writer": name,
    "start_cpu_ms": round(1e3 * (opened_cpu_s - cpu_s), 2),
    "start_wall_ms": round(1e3 * (opened_wall_s - wall_s), 2),
    "record_cpu_us": round(1e6 * (done_s - opened_cpu_s) / {records}, 1),
    "modules": len(set(sys.modules) - before),
    "tensorflow": "tensorflow" in sys.modules,
}}))
"""


def main() -> None:
    """Measure every candidate in turn, print JSON."""
    facts, rows = provenance(), []
    for turn in range(ROUNDS):
        for name, setup in CANDIDATES.items():
            program = _PROGRAM.format(setup=setup, records=RECORDS, scalars=SCALARS)
            with tempfile.TemporaryDirectory() as directory:
                done = subprocess.run([sys.executable, "-c", program, directory, name], capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            rows.append({"round": turn, **json.loads(done.stdout.splitlines()[-1]), **facts})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
