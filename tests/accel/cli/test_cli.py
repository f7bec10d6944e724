"""The command line as a user meets it: a process that prints one clear message and ends with its status."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accel.cli import COMMANDS, main, usage
from accel.cli.train import parse
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.transport.launcher import LaunchInfo

ROOT = Path(__file__).resolve().parents[3]
ALONE = LaunchInfo(0, 1, 0, "none")


@pytest.mark.slow
def test_a_run_needs_no_standard_streams(tmp_path: Path) -> None:
    """Its actor's process inherits what stands in their place."""
    small = "--network mlp:8x1 --unroll-length 16 --envs-per-actor 2 --compressor fp32 --total-env-steps 300"
    words = f"-m accel train --env CartPole-v1 --actors 1 {small} --results-dir {tmp_path} --name run <&- >&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(["sh", "-c", f"exec {sys.executable} {words}"], env=environment).returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()


def test_usage_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.splitlines() == usage().splitlines() * 2
    assert all(name in usage() for name in COMMANDS)
    assert main(["trian"]) == 2
    assert "unknown command 'trian'" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("accel 0.")


def test_flags_override_the_file_which_overrides_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("seed = 5\nlearning_rate = 0.25\nclip_rho = 'none'\n")
    job = parse(["--preset", "quickstart", "--config", str(file), "--seed", "6", "--clip-pg-rho=none"], ALONE)
    config = job.config
    assert (
        config.run.seed,
        config.optimiser.learning_rate,
        config.algorithm.clip_rho,
        config.algorithm.clip_pg_rho,
    ) == (6, 0.25, None, None)
    assert config.run.stop_at_return == 475.0 and config.acting.envs_per_actor == 64
    assert job.command[:3] == ("accel", "train", "--preset")


@pytest.mark.parametrize(
    ("words", "compressor", "chosen"),
    [
        ([], "auto(fp32;int8)", False),
        (["--actors", "0"], "fp32", False),
        (["--preset", "quickstart", "--actors", "0"], "int8", False),
        (["--compressor=int8"], "int8", True),
        (["--compressor", "fp16"], "fp16", True),
    ],
)
def test_the_default_compressor_follows_the_flags_and_a_chosen_one_is_the_users(
    words: list[str], compressor: str, chosen: bool
) -> None:
    job = parse(words, ALONE)
    assert (job.config.compression.compressor, job.compressor_chosen) == (compressor, chosen)


def test_repeated_flags_take_the_place_of_a_file_s(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text('wrapper = ["m:f", "m:g"]\nenv_arg = ["a=1", "b=2"]\n')
    for source in (["--config", str(run / "config.toml")], ["--resume", str(run)]):
        unchanged = parse(source, ALONE).config
        assert unchanged.environment.wrapper == ("m:f", "m:g") and unchanged.environment.kwargs == {"a": 1, "b": 2}
        again = parse([*source, "--wrapper", "m:f", "--wrapper", "m:g", "--env-arg", "b=3"], ALONE).config
        assert again.environment.wrapper == ("m:f", "m:g") and again.environment.env_arg == ("a=1", "b=3")
        assert parse([*source, "--wrapper", "m:h"], ALONE).config.environment.wrapper == ("m:h",)


def test_another_algorithm_on_a_preset_takes_what_it_reads_of_it() -> None:
    config = parse(["--preset", "lunarlander", "--algorithm", "dqn"], ALONE).config
    assert (config.environment.env, config.algorithm.algorithm, config.store.store) == (
        "LunarLander-v3",
        "dqn",
        "replay",
    )
    assert "passes" not in config.options() and config.optimiser.learning_rate == 5e-4
    with pytest.raises(ConfigError, match="--passes: algorithm dqn does not read it"):
        parse(["--preset", "lunarlander", "--algorithm", "dqn", "--passes", "3"], ALONE)


def test_the_last_of_several_presets_counts() -> None:
    config = parse(["--preset", "quickstart", "--name", "x", "--preset=halfcheetah"], ALONE).config
    assert (config.environment.env, config.run.name) == ("HalfCheetah-v5", "x")


def test_a_launched_job_has_as_many_actors_as_ranks_beside_the_learner() -> None:
    launched = LaunchInfo(0, 4, 0, "openmpi")
    config = parse([], launched).config
    assert (config.acting.actors, config.store.batch_unrolls) == (3, 3)
    assert parse(["--actors", "2"], launched).config.acting.actors == 2
    assert parse(["--algorithm", "ppo", "--batch-unrolls", "1"], launched).config.store.batch_unrolls == 1


def test_a_resumed_run_keeps_its_own_options(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    (run / "config.toml").write_text("seed = 9\ndiscount = 0.5\nname = 'before-it-was-moved'\n")
    job = parse(["--resume", str(run), "--discount", "0.75"], ALONE)
    assert (job.config.run.seed, job.config.algorithm.discount, job.config.run.name, job.path) == (9, 0.75, "mine", run)
    (run / "config.toml").unlink()
    with pytest.raises(ConfigError, match=r"config\.toml: No such file"):
        parse(["--resume", str(run)], ALONE)


def test_a_resumed_run_stays_where_it_is(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    (run / "config.toml").write_text("seed = 9\nresults_dir = 'of-another-working-directory'\n")
    (tmp_path / "more.toml").write_text("name = 'other'\n")
    for words in (["--name", "mine"], ["--results-dir", str(tmp_path)], ["--name=none"]):
        assert parse(["--resume", str(run), *words], ALONE).path == run
    assert parse(["--resume", str(run), "--config", str(tmp_path / "more.toml")], ALONE).config.run.name == "mine"
    for words, copy in (
        (["--name", "other"], tmp_path / "other"),
        (["--results-dir", str(tmp_path / "b")], tmp_path / "b/mine"),
        (["--name", "other", "--results-dir", str(tmp_path / "b")], tmp_path / "b/other"),
    ):
        with pytest.raises(
            ConfigError, match=f"{' '.join(words)}: .* stays in its directory.*leave.* cp -r {run} {copy}"
        ):
            parse(["--resume", str(run), *words], ALONE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--discount", "2"], ["discount", "less than or equal to 1"]),
        (["--total-env-steps", "many"], ["--total-env-steps", "INT"]),
        (["--nonsense", "3"], ["--nonsense"]),
        (
            ["--algorithm", "impala", "--passes", "2"],
            ["--passes", "algorithm impala does not read it", "algorithm ppo"],
        ),
    ],
)
def test_a_wrong_option_ends_with_status_2_and_says_why(
    words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["train", "--actors", "0", *words])
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        status = stop.code
    printed = capsys.readouterr()
    assert status == 2
    assert all(text in printed.err + printed.out for text in expected), printed


def help_of_training(*words: str) -> str:
    program = (
        f"import sys; from accel.cli import main\ntry: main(['train', *{words!r}])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_tells_every_option_without_torch() -> None:
    text = help_of_training("--help-all")
    for option in ("--env ", "--actors", "--lambda ", "--total-env-steps", "--preset", "--resume", "--clip-pg-rho"):
        assert option in text, option


@pytest.mark.parametrize("algorithm", ["dppo", "sac"])
def test_help_tells_what_people_set_and_where_the_rest_is(algorithm: str) -> None:
    text = help_of_training("--algorithm", algorithm, "--help")
    assert len(re.findall(r"^│ +(?:-h, )?--\w", text, re.MULTILINE)) <= 45
    assert "--learning-rate" in text and "--help-all" in text and "--peer-timeout-s" not in text


def test_flags_of_other_libraries_numbers_and_letter_cases_are_taken() -> None:
    words = "--algorithm PPO --lr 1e-3 --gamma=0.9 --timesteps 1e6 --n-envs 4 --compressor INT8 --evaluate-every 5k"
    config = parse(words.split(), ALONE).config
    assert (config.algorithm.algorithm, config.algorithm.discount, config.optimiser.learning_rate) == ("ppo", 0.9, 1e-3)
    assert (config.run.total_env_steps, config.acting.envs_per_actor) == (1_000_000, 4)
    assert config.compression.compressor == "int8" and config.run.evaluate_every == 5000
    assert parse(["--total-env-steps=1.5M", "--actors", "2"], ALONE).config.run.total_env_steps == 1_500_000
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        TrainConfig.create(lr=0.1)


def test_many_more_actors_than_cores_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    parse(["--actors", "4000"], ALONE)
    assert "--actors 4000" in caplog.text and "cores" in caplog.text


@pytest.mark.parametrize(
    ("words", "module", "remedy"),
    [
        (["sweep", "--run", "x"], "optuna", "accel sweep needs the module 'optuna': pip install 'accel-rl[sweep]'"),
        (["verify", "x"], "onnxruntime", "accel verify needs onnxruntime: pip install onnxruntime"),
        (["train"], "pydantic", ""),
    ],
)
def test_a_missing_extra_is_one_line_with_its_remedy(words: list[str], module: str, remedy: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; from accel.cli import main; sys.exit(main({words!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    if remedy:
        assert (done.returncode, done.stderr) == (2, f"accel: {remedy}\n")
    else:
        assert "Traceback" in done.stderr, "a broken installation is no missing extra"


@pytest.mark.long
def test_modules_of_the_working_directory_are_found_and_replace_no_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def wrapped(env):\n    print('wrapped')\n    return env\n")
    for name in ("numpy", "logging", "torch", "rich"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    words = "-m accel train --actors 0 --total-env-steps 100 --network mlp:8x1 --name run --wrapper mine:wrapped"
    done = subprocess.run(
        [sys.executable, "-W", "error", *words.split()], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0 and "wrapped" in done.stdout, done.stderr
