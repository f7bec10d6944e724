"""What a run reports while it trains: metrics files, Weights & Biases, the display, warnings of collapse."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from accel.display.progress import LineProgress, LiveProgress, Progress, ProgressLogHandler
from accel.display.status import EvaluationStatus, TrainingStatus
from accel.envs.spaces import ActionSpec
from accel.learning.collapse import CollapseDetector
from accel.monitor.recorder import METRICS_FILE, Recorder
from accel.runs.job import Job
from accel.runs.wandb_upload import Metrics, Upload, WandbUpload

logger = logging.getLogger("accel")


class Records:
    """Those of one run; as a context manager it shows log messages on the display and closes everything at the end.

    Args:
        env_steps: behind the checkpoint of a resumed run, whose later records are removed; None: a new run.
    Attributes:
        progress: the display. upload: where metrics go besides.
    """

    def __init__(self, job: Job, run: Path, action: ActionSpec, env_steps: int | None) -> None:
        self._config = config = job.config
        self._recorder = Recorder(run, resume_env_steps=env_steps)
        # Live only where the user's command has a terminal: mpirun gives its ranks one even where it has none.
        columns = job.columns
        self.progress: Progress = (
            LineProgress(sys.stdout) if columns is None else LiveProgress(sys.stdout, columns=columns)
        )
        self._handler = ProgressLogHandler(self.progress)
        self._evaluated: EvaluationStatus | None = None
        self._collapse = CollapseDetector(config, action)
        self._began_cpu_s = time.process_time()
        self.upload = Upload()
        if env_steps is not None:
            self._collapse.read(run / METRICS_FILE)
        if config.run.wandb is not None:
            self.upload = WandbUpload(config.run.wandb, run, config.to_json())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What collapsed so far, in sentences with what to try."""
        return self._collapse.findings

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of this process since training began."""
        return time.process_time() - self._began_cpu_s

    def begin(self) -> None:
        """Training begins."""
        self.progress.begin(f"{self._config.environment.env} · {self._config.compression.compressor}")
        self._began_cpu_s = time.process_time()

    def add(self, env_steps: int, metrics: Metrics) -> None:
        """Write one record of training, and display it."""
        self.write(env_steps, metrics)
        config = self._config
        status = TrainingStatus(
            {**metrics, "env_steps": env_steps},
            total_env_steps=config.run.total_env_steps,
            return_target=config.run.stop_at_return,
            actors=max(config.acting.actors, 1),
            evaluated=self._evaluated,
        )
        self._evaluated = status.evaluation
        if (finding := self._collapse.observe(env_steps, metrics)) is not None:
            logger.warning("%s", finding)
        self.progress.advance(status)

    def write(self, env_steps: int, metrics: Metrics) -> None:
        """Write one record of anything else."""
        self._recorder.record(env_steps, metrics)
        self.upload.record(env_steps, metrics)

    def __enter__(self) -> Self:
        logger.addHandler(self._handler)
        self._propagates, logger.propagate = logger.propagate, False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger.removeHandler(self._handler)
        logger.propagate = self._propagates
        self._recorder.close()
        self.progress.close()
