"""Storages of studies, recovery of killed workers' trials, passwords in storage URLs, SQLite on several hosts."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from accel.errors import SweepError
from accel.sweep.driver import run_sweep
from accel.sweep.experiment import Measurement
from accel.sweep.pareto import Candidate
from accel.sweep.recovery import HEARTBEAT, WORKER, StaleTrials, queue_again, this_worker
from accel.sweep.storage import connected, default_url, without_passwords
from accel.sweep.study import open_study
from tests.accel.runs.test_full_disks import fill
from tests.accel.sweep.sweeping import Plain, draw, opened, plan_for, trials_of, work_on


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("nonsense", "is no URL"),
        ("postgresql+psycopg2://user:secret@127.0.0.1:1/none", "postgresql"),
        ("sqlite:////proc/no/study.db", "cannot open storage"),
        ("journal:/no/such/place/study.log", "cannot open storage"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_message_without_passwords_and_leaves_no_directory(
    url: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SweepError, match=message) as caught:
        run_sweep(None, plan_for(tmp_path, url=url), tmp_path / "new" / "out", ())  # type: ignore[arg-type]
    assert "secret" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("redis://:secret@host:6379/1", "redis://:***@host:6379/1"),
        ("accel sweep --storage=mysql+pymysql://a:secr@et@h/d", "accel sweep --storage=mysql+pymysql://a:***@h/d"),
        ("postgresql://u@h/d?sslmode=on&password=secret&x=1", "postgresql://u@h/d?sslmode=on&password=***&x=1"),
        ("mysql://u@h/d?ssl=1&auth_token=a.b&pwd=c", "mysql://u@h/d?ssl=1&auth_token=***&pwd=***"),
        ("journal:/a:b@c/study.log", "journal:/a:b@c/study.log"),
    ],
)
def test_passwords_are_masked(text: str, public: str) -> None:
    assert without_passwords(text) == public


@pytest.mark.filterwarnings("ignore:Query string argument:sqlalchemy.exc.SAWarning")
def test_no_output_of_a_sweep_holds_the_storage_s_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The password of a URL that SQLite takes without looking at it: not in files, on the terminal or in messages."""
    caplog.set_level(logging.DEBUG)
    url = f"sqlite:///{tmp_path / 'study.db'}?password=secret"
    run_sweep(Plain(), plan_for(tmp_path, url=url), tmp_path, ("accel", "sweep", "--storage", url))
    with pytest.raises(SweepError, match="holds another study") as refused:
        run_sweep(Plain(), replace(plan_for(tmp_path, url=url), name="b"), tmp_path, ())
    printed = capfd.readouterr()
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [text.encode() for text in (printed.out, printed.err, caplog.text, str(refused.value))]
    assert len(texts) > 5 and not any(b"secret" in text for text in texts)
    assert json.loads((tmp_path / "pareto.json").read_text())["study"]["storage"].endswith("?password=***")


def test_workers_draw_different_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(tmp_path)
    with connected(plan.url) as storage:
        draws = [open_study(plan, storage, {}).ask().suggest_float("x", 0, 1) for _ in range(3)]
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
        draws.append(open_study(plan, storage, {}).ask().suggest_float("x", 0, 1))
    assert len(set(draws)) == 4
    (tmp_path / "again").mkdir()
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    again = plan_for(tmp_path / "again")
    with connected(again.url) as storage:
        assert open_study(again, storage, {}).ask().suggest_float("x", 0, 1) == draws[0]


def test_trials_of_dead_workers_are_queued_again_and_those_of_living_ones_are_left_alone(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with opened(plan) as study:
        workers = [this_worker(), {**this_worker(), "pid": gone.pid}, {**this_worker(), "started": 1},
                   {**this_worker(), "node": "elsewhere", "pid": gone.pid}]  # fmt: skip
        for number, worker in enumerate(workers):
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            trial.set_user_attr(WORKER, worker)
            trial.set_user_attr("run", f"trial-{number}")
        stale = StaleTrials()
        stale.recover(study)
        stale.recover(study)
        assert not stale.all_alive(study), "nobody knows yet about the worker elsewhere"
        states = [trial.state.name for trial in study.trials]
        assert states == ["RUNNING", "FAIL", "FAIL", "RUNNING", "WAITING", "WAITING"]
        assert study.trials[4].system_attrs["fixed_params"] == study.trials[1].params
        assert study.trials[4].user_attrs == {"run": "trial-1", "kills": 1}


@pytest.fixture(params=["sqlite", "journal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}" if request.param == "sqlite" else default_url(tmp_path)


_STUCK = """
import sys, time
from pathlib import Path
from tests.accel.sweep.sweeping import draw, opened, plan_for, work_on

plan = plan_for(Path(), url=sys.argv[1], grace_s=0.6)
with opened(plan) as study:
    work_on(study, plan, lambda trial: (draw(trial), time.sleep(1000)))
"""


@pytest.mark.long
def test_a_trial_of_a_worker_killed_on_another_host_is_done_by_the_next(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    plan = plan_for(tmp_path, url=url, grace_s=1.5)
    with subprocess.Popen([sys.executable, "-c", _STUCK, url]) as killed, connected(url) as storage:
        try:
            study = open_study(plan, storage, {})
            while not any(HEARTBEAT in trial.user_attrs and trial.params for trial in study.get_trials()):
                assert killed.poll() is None
                time.sleep(0.05)
            # from here on it looks like a worker whose process cannot be seen
            trial = study.get_trials()[0]
            storage.set_trial_user_attr(trial._trial_id, WORKER, {**trial.user_attrs[WORKER], "node": "elsewhere"})
            stale = StaleTrials(grace_s=1.5)
            stale.recover(study)
            time.sleep(1.5)
            while study.get_trials()[0].user_attrs[HEARTBEAT] == trial.user_attrs[HEARTBEAT]:
                time.sleep(0.05)
            stale.recover(study)
            assert len(study.trials) == 1, "it lives"
            while not stale.all_alive(study):
                time.sleep(0.05)
        finally:
            killed.kill()
            killed.wait()
        drawn: list[float] = []

        def evaluate(trial: optuna.Trial) -> Measurement:
            drawn.append(trial.suggest_float("x", 0, 1))
            return draw(trial)

        work_on(study, plan, evaluate)
    states = [trial.state.name for trial in trials_of(url, "s")]
    assert sorted(states) == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"] and states[0] == "FAIL"
    assert trial.params["x"] in drawn, "nothing is lost"


def test_a_worker_whose_trial_was_taken_over_goes_on_with_others(url: str, tmp_path: Path) -> None:
    plan = plan_for(tmp_path, url=url)
    with opened(plan) as study:

        def evaluate(trial: optuna.Trial) -> Measurement:
            trial.suggest_float("x", 0, 1)
            if trial.number == 0:
                study.tell(0, state=optuna.trial.TrialState.FAIL)
                queue_again(study, study.trials[0])
            return draw(trial)

        work_on(study, plan, evaluate)
        assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
        assert study.trials[1].params == study.trials[0].params


def test_a_trial_that_keeps_killing_its_worker_is_given_up(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    with opened(plan) as study:
        study.enqueue_trial({"x": 0.5})
        for _ in range(4):
            trial = study.ask()
            assert trial.suggest_float("x", 0, 1) == 0.5
            trial.set_user_attr(WORKER, {**this_worker(), "started": 1})
            StaleTrials().recover(study)
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 4


def test_orderly_interruptions_never_cost_a_trial(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, trials=2)
    with opened(plan) as study:
        drawn, left = list[float](), iter(range(6))

        def evaluate(trial: optuna.Trial) -> Measurement:
            drawn.append(trial.suggest_float("x", 0, 1))
            if next(left, None) is not None:
                raise KeyboardInterrupt
            return draw(trial)

        for _ in range(6):
            with pytest.raises(KeyboardInterrupt):
                work_on(study, plan, evaluate)
        work_on(study, plan, evaluate)
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 6 + ["COMPLETE"] * 2
    assert len(set(drawn[:7])) == 1 and len(set(drawn)) == 2


def test_a_storage_lost_on_the_way_is_one_message(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, url=f"sqlite:///{tmp_path / 'study.db'}")

    def evaluate(trial: optuna.Trial) -> Measurement:
        with closing(sqlite3.connect(tmp_path / "study.db")) as database:
            database.execute("DROP TABLE trials")
        return draw(trial)

    with pytest.raises(SweepError, match=r"storage sqlite.*study.db was lost: .*run the same command again"):
        with opened(plan) as study:
            work_on(study, plan, evaluate)
    with pytest.raises(ZeroDivisionError), connected(plan.url):
        raise ZeroDivisionError


@pytest.mark.few(3)
@pytest.mark.parametrize("storage", ["sqlite", "journal"])
@pytest.mark.parametrize("during", ["a trial", "the end"])
@pytest.mark.parametrize("loss", ["removed", "full"])
def test_a_directory_that_is_lost_or_full_ends_with_one_message(
    loss: str, during: str, storage: str, disk: Path
) -> None:
    """And the same command finishes the sweep when it is back."""
    out = disk / "out"
    out.mkdir()
    plan = plan_for(out, **({"url": f"sqlite:///{out}/study.db"} if storage == "sqlite" else {}))
    lose = {"removed": lambda: shutil.rmtree(out), "full": lambda: fill(disk)}[loss]
    with pytest.raises(SweepError, match=r"was lost: .*the same command|any more: .*the same command"):
        run_sweep(Troubled(during, lose), plan, out, ())
    (disk / "filler").unlink(missing_ok=True)
    if during == "the end":
        assert run_sweep(Plain(), plan, out, ()).trials == 3 and (out / "pareto.json").stat().st_size


class Troubled(Plain):
    """An experiment during which something happens."""

    def __init__(self, during: str, then: Callable[[], object]) -> None:
        super().__init__()
        self._during, self._then = during, then

    def evaluate(self, trial: optuna.Trial) -> Measurement:
        if self._during == "a trial" and trial.number == 1:
            self._then()
        return super().evaluate(trial)

    def measure_again(self, rows: Sequence[Candidate]) -> list[Candidate]:
        if self._during == "the end":
            self._then()
        return list(rows)


def test_a_read_only_directory_is_one_message() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as directory:
        locked = Path(directory) / "locked"
        locked.mkdir(mode=0o555)
        os.chmod(directory, 0o755)
        if user == 0:
            os.seteuid(65534)  # root may write everywhere
        try:
            with pytest.raises(SweepError, match=r"cannot write to .*: Permission denied; choose another --out"):
                run_sweep(None, plan_for(locked), locked / "new" / "out", ())  # type: ignore[arg-type]
        finally:
            os.seteuid(user)
        assert not list(locked.iterdir())


@pytest.mark.parametrize("when", ["before the start", "while another worker runs"])
def test_an_incomplete_last_record_of_a_journal_is_removed(
    when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "study.log"
    plan = plan_for(tmp_path, url=f"journal:{journal}", trials=4)

    def tear() -> bytes:
        """As a worker that is killed while it writes."""
        complete = journal.read_bytes()
        torn = complete.splitlines()[-1][:40]
        journal.write_bytes(complete + torn)
        return torn

    two = replace(plan, trials=2)
    with opened(two) as study:
        work_on(study, two)
    before = trials_of(plan.url, "s")
    torn = tear() if when == "before the start" else b""
    with opened(plan) as study:
        torn = torn or tear()
        work_on(study, plan)
    trials = trials_of(plan.url, "s")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert [trial.values for trial in trials[:2]] == [trial.values for trial in before]
    assert f"{journal}: removed an incomplete last record of {len(torn)} bytes" in caplog.text
    assert torn not in journal.read_bytes().splitlines()
