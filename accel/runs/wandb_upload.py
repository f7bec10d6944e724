"""A run's metrics on Weights & Biases (``--wandb PROJECT``), beside its own files.

A thread of its own talks to wandb, from ``wandb.init`` to the end, so that a slow or missing network holds nothing up:
records wait in a bounded queue. Whatever goes wrong there ends the upload with one warning, never the run, whose own
files hold everything. Without a network: ``WANDB_MODE=offline``, and later ``wandb sync RUN/wandb/offline-run-*``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from accel.monitor.event_file import event_tag
from accel.monitor.line_file import read_lines

Metrics = Mapping[str, float | int | str | None]

_POLL_S = 0.1
MAX_WAITING = 10_000

logger = logging.getLogger("accel")


class Upload:
    """Where metrics go besides the run's directory; never raises. This one sends nothing."""

    def record(self, env_steps: int, metrics: Metrics) -> None:
        """Send one record; returns at once."""

    def finish(self, outcome: Metrics, meanwhile: Callable[[], object], timeout_s: float) -> None:
        """Send what waits, and how the run ended, for ``timeout_s`` at most; calls ``meanwhile`` again and again."""


class WandbUpload(Upload):
    """One run of a project on Weights & Biases; a resumed run goes on in the same one.

    Args: directory: the run directory, which gets wandb's own files in ``wandb/``. options: the run's configuration.
    """

    def __init__(self, project: str, directory: Path, options: Mapping[str, object]) -> None:
        self._waiting: queue.Queue[tuple[str, Metrics]] = queue.Queue(MAX_WAITING)
        identity = hashlib.blake2b(next(read_lines(directory / "starts.jsonl")).rstrip(b"\n"), digest_size=8)
        self._thread = threading.Thread(
            target=self._serve, args=(project, directory, identity.hexdigest(), dict(options)), daemon=True
        )
        self._thread.start()

    def record(self, env_steps: int, metrics: Metrics) -> None:
        """See ``Upload.record``; a record that finds the queue full is left out."""
        self._put("record", {**metrics, "env_steps": env_steps})

    def finish(self, outcome: Metrics, meanwhile: Callable[[], object], timeout_s: float) -> None:
        """See ``Upload.finish``."""
        self._put("summary", outcome)
        self._put("end", {})
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_POLL_S)
            meanwhile()
        if self._thread.is_alive():
            logger.warning("Weights & Biases did not take everything within %g s", timeout_s)

    def _put(self, kind: str, metrics: Metrics) -> None:
        with suppress(queue.Full):
            self._waiting.put_nowait((kind, metrics))

    def _serve(self, project: str, directory: Path, identity: str, options: dict[str, object]) -> None:
        try:
            self._upload(project, directory, identity, options)
        except Exception as error:  # noqa: BLE001 - whatever wandb raises must not end the run
            text = " ".join(str(error).split()) or type(error).__name__
            logger.warning("nothing more goes to Weights & Biases: %s; training goes on", text)

    def _upload(self, project: str, directory: Path, identity: str, options: dict[str, object]) -> None:
        import wandb

        online = os.environ.get("WANDB_MODE", "online") == "online"
        if online and not wandb.login(verify=False, prompt=False):
            raise ConnectionError("no API key; run wandb login, or set WANDB_MODE=offline")
        run = wandb.init(
            project=project, name=directory.name, id=identity, dir=str(directory), config=options, resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        run.define_metric("*", step_metric="env_steps")
        while (item := self._waiting.get())[0] != "end":
            kind, metrics = item
            known = {name: value for name, value in metrics.items() if value is not None}
            if kind == "summary":
                run.summary.update(known)
            else:
                run.log({name if name == "env_steps" else event_tag(name): value for name, value in known.items()})
        run.finish()
