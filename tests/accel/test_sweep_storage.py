"""Storages of studies, recovery of killed workers' trials, and which hosts may use a SQLite file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from accel.errors import SweepError
from accel.sweep.driver import run_sweep
from accel.sweep.objectives import AFTER_TRAINING
from accel.sweep.pareto import Candidate
from accel.sweep.recovery import SIGN, WORKER, Attendance, process_start, queue_again, release_own, this_worker
from accel.sweep.storage import connected, default_url, one_host, public_url, sqlite_path
from accel.sweep.study import Measurement, open_study, work
from tests.accel.sweeping import ask, options_for, trials_of
from tests.accel.test_full_disks import fill


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("nonsense", "is no URL"),
        ("postgresql+psycopg2://user:secret@127.0.0.1:1/none", "postgresql"),
        ("sqlite:////proc/no/study.db", "cannot open storage"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_message_without_passwords(url: str, message: str) -> None:
    with pytest.raises(SweepError, match=message) as caught:
        sqlite_path(url)
        with connected(url):
            pass
    assert "secret" not in str(caught.value)
    assert "secret" not in public_url(url)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_study_is_about_one_subject(tmp_path: Path, kind: str) -> None:
    url = default_url(tmp_path) if kind == "sqlite" else f"journal:{tmp_path / 'study.log'}"
    options = options_for(tmp_path, url=url)
    with connected(url) as storage:
        open_study(options, storage, {"run": "a"})
        assert open_study(options, storage, {"run": "a"}).study_name == "s"
        with pytest.raises(SweepError, match=r"run was a and is b. Give another --study and another --out"):
            open_study(options, storage, {"run": "b"})


def test_workers_draw_different_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_for(tmp_path, sampler="random")
    with connected(options.url) as storage:
        draws = [ask(open_study(options, storage, {})).suggest_float("x", 0, 1) for _ in range(3)]
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
        draws.append(ask(open_study(options, storage, {})).suggest_float("x", 0, 1))
    assert len(set(draws)) == 4
    (tmp_path / "again").mkdir()
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    again = options_for(tmp_path / "again", sampler="random")
    with connected(again.url) as storage:
        assert ask(open_study(again, storage, {})).suggest_float("x", 0, 1) == draws[0]


def test_trials_of_dead_workers_are_queued_again_and_those_of_living_ones_are_left_alone(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with connected(options.url) as storage:
        study = open_study(options, storage, {})
        workers = [this_worker(), {**this_worker(), "pid": gone.pid}, {**this_worker(), "started": "0"},
                   {**this_worker(), "host": "elsewhere", "pid": gone.pid}]  # fmt: skip
        for number, worker in enumerate(workers):
            trial = ask(study)
            trial.suggest_float("x", 0, 1)
            trial.set_user_attr(WORKER, worker)
            trial.set_user_attr("run", f"trial-{number}")
        others = Attendance()
        others.recover(study)
        others.recover(study)
        assert not others.settle(study), "nobody knows yet about the worker elsewhere"
        states = [trial.state.name for trial in study.trials]
        assert states == ["RUNNING", "FAIL", "FAIL", "RUNNING", "WAITING", "WAITING"]
        assert study.trials[4].params == study.trials[1].params
        assert study.trials[4].user_attrs == {"run": "trial-1"}


@pytest.fixture(params=["sqlite", "journal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return default_url(tmp_path) if request.param == "sqlite" else f"journal:{tmp_path / 'study.log'}"


_STUCK = """
import sys, time
from pathlib import Path
from accel.sweep.storage import connected
from accel.sweep.study import open_study, work
from tests.accel.sweeping import options_for

def evaluate(trial):
    trial.suggest_float("x", 0, 1)
    time.sleep(1000)

options = options_for(Path(), url=sys.argv[1], grace_s=0.6)
with connected(options.url) as storage:
    work(open_study(options, storage, {}), options, evaluate, print)
"""


def test_a_trial_of_a_worker_killed_on_another_host_is_done_by_the_next(url: str, tmp_path: Path) -> None:
    options = options_for(tmp_path, url=url, grace_s=1.5)
    with subprocess.Popen([sys.executable, "-c", _STUCK, url]) as killed, connected(url) as storage:
        try:
            study = open_study(options, storage, {})
            while not any(SIGN in trial.user_attrs for trial in study.get_trials()):
                assert killed.poll() is None
                time.sleep(0.05)
            # from here on it looks like a worker whose process cannot be seen
            trial = study.get_trials()[0]
            storage.set_trial_user_attr(trial._trial_id, WORKER, {**trial.user_attrs[WORKER], "host": "elsewhere"})
            others = Attendance(grace_s=1.5)
            others.recover(study)
            time.sleep(1.5)
            while study.get_trials()[0].user_attrs[SIGN] == trial.user_attrs[SIGN]:
                time.sleep(0.05)
            others.recover(study)
            assert len(study.trials) == 1, "it lives"
            while not others.settle(study):
                time.sleep(0.05)
        finally:
            killed.kill()
            killed.wait()
        drawn: list[float] = []

        def evaluate(trial: optuna.Trial) -> Measurement:
            drawn.append(trial.suggest_float("x", 0, 1))
            return Measurement({"return": 1.0, "bytes": 1.0}, {})

        work(study, options, evaluate, lambda _study, _trial: None)
    states = [trial.state.name for trial in trials_of(url, "s")]
    assert sorted(states) == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"] and states[0] == "FAIL"
    assert trial.params["x"] in drawn, "nothing is lost"


def test_a_worker_whose_trial_was_taken_over_goes_on_with_others(url: str, tmp_path: Path) -> None:
    options = options_for(tmp_path, url=url)
    with connected(url) as storage:
        study = open_study(options, storage, {})

        def evaluate(trial: optuna.Trial) -> Measurement:
            trial.suggest_float("x", 0, 1)
            if trial.number == 0:
                study.tell(0, state=optuna.trial.TrialState.FAIL)
                queue_again(study, study.trials[0])
                queue_again(study, study.trials[0])
            return Measurement({"return": 1.0, "bytes": 1.0}, {})

        work(study, options, evaluate, lambda _study, _trial: None)
        assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
        assert study.trials[1].params == study.trials[0].params


def test_a_trial_that_keeps_killing_its_worker_is_given_up(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    with connected(options.url) as storage:
        study = open_study(options, storage, {})
        study.enqueue_trial({"x": 0.5})
        for _ in range(4):
            trial = ask(study)
            assert trial.suggest_float("x", 0, 1) == 0.5
            trial.set_user_attr(WORKER, {**this_worker(), "started": "0"})
            Attendance().recover(study)
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 4


def test_orderly_interruptions_never_cost_a_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = options_for(tmp_path)
    with connected(options.url) as storage:
        study = open_study(options, storage, {})
        study.enqueue_trial({"x": 0.5})
        for _ in range(6):
            trial = ask(study)
            assert trial.suggest_float("x", 0, 1) == 0.5
            trial.set_user_attr(WORKER, this_worker())
            release_own(study)
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 6 + ["WAITING"]
        for _ in range(4):
            trial = ask(study)
            assert trial.suggest_float("x", 0, 1) == 0.5
            trial.set_user_attr(WORKER, {**this_worker(), "started": "0"})
            Attendance().recover(study)
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 10
    assert "trial 9 is given up: its worker was killed for the 4th time" in caplog.text


def test_a_process_is_told_from_a_later_one() -> None:
    assert process_start(os.getpid()) == process_start(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        assert process_start(child.pid) not in (None, process_start(os.getpid()))
    finally:
        child.kill()
        child.wait()
    assert process_start(child.pid) is None


def test_a_storage_lost_on_the_way_is_one_message(tmp_path: Path) -> None:
    options = options_for(tmp_path)

    def evaluate(trial: optuna.Trial) -> Measurement:
        with closing(sqlite3.connect(tmp_path / "study.db")) as database:
            database.execute("DROP TABLE trials")
        return Measurement({"return": trial.suggest_float("x", 0, 1), "bytes": 1.0}, {})

    with pytest.raises(SweepError, match=r"storage sqlite.*study.db was lost: .*run the same command again"):
        with connected(options.url) as storage:
            work(open_study(options, storage, {}), options, evaluate, lambda _study, _trial: None)
    with pytest.raises(ZeroDivisionError), connected(options.url):
        raise ZeroDivisionError


@pytest.mark.parametrize("storage", ["sqlite", "journal"])
@pytest.mark.parametrize("during", ["a trial", "the end"])
@pytest.mark.parametrize("loss", ["removed", "full"])
def test_a_directory_that_is_lost_or_full_ends_with_one_message(
    loss: str, during: str, storage: str, disk: Path
) -> None:
    """And the same command finishes the sweep when it is back."""
    out = disk / "out"
    out.mkdir()
    options = options_for(out, **({"url": f"journal:{out}/study.log"} if storage == "journal" else {}))
    lose = {"removed": lambda: shutil.rmtree(out), "full": lambda: fill(disk)}[loss]
    with pytest.raises(SweepError, match=r"was lost: .*the same command|any more: .*the same command"):
        run_sweep(Plain(during, lose), options, out, ())
    (disk / "filler").unlink(missing_ok=True)
    if during == "the end":
        assert run_sweep(Plain(), options, out, ()).trials == 3 and (out / "pareto.json").stat().st_size


def test_a_heartbeat_of_a_lost_storage_is_missed_in_silence(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    with connected(options.url) as storage:
        assert isinstance(storage, optuna.storages.RDBStorage)
        trial = storage.create_new_trial(open_study(options, storage, {})._study_id)
        beat = "SELECT COUNT(*) FROM trial_heartbeats"
        storage.record_heartbeat(trial)
        with closing(sqlite3.connect(tmp_path / "study.db")) as database:
            assert database.execute(beat).fetchone() == (1,)
            database.execute("DROP TABLE trial_heartbeats")
        storage.record_heartbeat(trial)


class Plain:
    """An experiment whose trials take no time, and during which something happens."""

    metrics, kind, title, references = AFTER_TRAINING, "after training", "plain", {"return": 1.0, "bytes": 2.0}

    def __init__(self, during: str = "", then: Callable[[], object] = lambda: None) -> None:
        self._during, self._then = during, then

    def subject(self) -> dict[str, object]:
        return {"run": "a"}

    def prepare(self, study: optuna.Study, directory: Path) -> None: ...

    def evaluate(self, trial: optuna.Trial) -> Measurement:
        if self._during == "a trial" and trial.number == 1:
            self._then()
        return Measurement({"return": trial.suggest_float("x", 0, 1), "bytes": 1.0}, self.references)

    def label(self, trial: optuna.trial.FrozenTrial) -> str:
        return str(trial.params)

    def configuration(self, trial: optuna.trial.FrozenTrial) -> None: ...

    def export_command(self, label: str, directory: Path) -> None: ...

    def how_measured(self) -> str:
        return ""

    def measure_again(self, rows: list[Candidate]) -> list[Candidate]:
        if self._during == "the end":
            self._then()
        return rows


@pytest.mark.parametrize("storage", ["journal:/no/such/place/study.log", "postgresql://user:secret@127.0.0.1:1/none"])
def test_a_bad_storage_leaves_no_output_directory(storage: str, tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="storage"):
        run_sweep(None, options_for(tmp_path, url=storage), tmp_path / "new" / "out", ())  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SweepError, match=r"cannot write to .*choose another --out"):
        run_sweep(None, options_for(tmp_path), tmp_path / "file" / "out", ())  # type: ignore[arg-type]


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
                run_sweep(None, options_for(locked), locked / "new" / "out", ())  # type: ignore[arg-type]
        finally:
            os.seteuid(user)
        assert not list(locked.iterdir())


@pytest.mark.parametrize("when", ["before the start", "while another worker runs"])
def test_an_incomplete_last_record_of_a_journal_is_removed(
    when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "study.log"
    options = options_for(tmp_path, url=f"journal:{journal}", trials=4)

    def evaluate(trial: optuna.Trial) -> Measurement:
        return Measurement({"return": trial.suggest_float("x", 0, 1), "bytes": 1.0}, {})

    def tear() -> bytes:
        """As a worker that is killed while it writes."""
        complete = journal.read_bytes()
        torn = complete.splitlines()[-1][:40]
        journal.write_bytes(complete + torn)
        return torn

    with connected(options.url) as storage:
        two = replace(options, trials=2)
        work(open_study(two, storage, {}), two, evaluate, lambda _study, _trial: None)
    before = trials_of(options.url, "s")
    torn = tear() if when == "before the start" else b""
    with connected(options.url) as storage:
        study = open_study(options, storage, {})
        torn = torn or tear()
        work(study, options, evaluate, lambda _study, _trial: None)
    trials = trials_of(options.url, "s")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert [trial.values for trial in trials[:2]] == [trial.values for trial in before]
    assert f"{journal}: removed an incomplete last record of {len(torn)} bytes" in caplog.text
    assert torn not in journal.read_bytes().splitlines()


_TWO_TRIALS = """
import sys
from pathlib import Path
from accel.sweep.storage import connected
from accel.sweep.study import Measurement, open_study, work
from tests.accel.sweeping import options_for

def evaluate(trial):
    return Measurement({"return": trial.suggest_float("x", 0, 1), "bytes": 1.0}, {})

options = options_for(Path(), url=sys.argv[1], trials=2)
with connected(options.url) as storage:
    work(open_study(options, storage, {}), options, evaluate, lambda _study, _trial: None)
"""


def test_a_journal_whose_last_line_is_cut_off_loses_that_line_only(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    url = f"journal:{journal}"
    command = [sys.executable, "-c", _TWO_TRIALS, url]
    subprocess.run(command, check=True)
    content = journal.read_bytes()
    journal.write_bytes(content[: content.rindex(b"\n", 0, -1) + 20])  # the end of the second trial
    assert [trial.state.name for trial in trials_of(url, "s")] == ["COMPLETE", "RUNNING"]
    subprocess.run(command, check=True)
    trials = trials_of(url, "s")
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert trials[2].params == trials[1].params


def test_two_hosts_on_one_sqlite_file_are_refused_with_the_remedy(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    with one_host(url, "alpha"), one_host(url, "alpha"):
        with pytest.raises(SweepError, match=r"in use on host alpha, and this is beta.*--storage postgresql"):
            with one_host(url, "beta"):
                pass
        with one_host("postgresql://u@h/d", "beta"):
            pass
    claim = tmp_path / "study.db.host-1"
    os.utime(claim, (time.time() - 3600, time.time() - 3600))
    with one_host(url, "beta"), pytest.raises(SweepError, match="host beta"), one_host(url, "alpha"):
        pass


def test_of_two_hosts_that_find_the_same_old_claim_one_gets_it(tmp_path: Path) -> None:
    for attempt in range(20):
        place = tmp_path / str(attempt)
        place.mkdir()
        url, claim = default_url(place), place / "study.db.host-1"
        claim.write_text('{"host": "gone"}')
        os.utime(claim, (time.time() - 3600, time.time() - 3600))
        together = threading.Barrier(4)
        holders: list[str] = []
        refused: list[str] = []

        def start(host: str, url: str, holders: list[str], refused: list[str], together: threading.Barrier) -> None:
            together.wait()
            try:
                with one_host(url, host):
                    holders.append(host)
            except SweepError:
                refused.append(host)

        threads = [
            threading.Thread(target=start, args=(f"host-{n % 2}", url, holders, refused, together)) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(holders)) == 1 and len(holders) == len(refused) == 2, (attempt, holders, refused)
        assert [path.name for path in place.iterdir()] == ["study.db.host-2"]


@pytest.mark.long
def test_a_claim_stays_fresh_while_its_worker_lives(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    claim = tmp_path / "study.db.host-1"
    with one_host(url, "alpha", stale_s=30.0):
        os.utime(claim, (0, 0))
        while not claim.stat().st_mtime:  # renewed every five seconds
            time.sleep(0.1)
        with pytest.raises(SweepError, match="host alpha"), one_host(url, "beta", stale_s=30.0):
            pass
    os.utime(claim, (0, 0))
    with one_host(url, "beta", stale_s=30.0):
        pass
