"""README, docs and evidence tables: their commands parse, their links lead somewhere, their options are the code's."""

from __future__ import annotations

import argparse
import importlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import tyro
from pydantic.fields import FieldInfo

from accel.cli import COMMANDS
from accel.cli.train import parse as parse_training
from accel.config import TrainConfig
from accel.config.algorithms import ALGORITHMS
from accel.config.train import all_options
from accel.transport.launcher import detect_launch
from tests.scripts import load

PROJECT = Path(__file__).parents[1]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
EVIDENCE = [*sorted((PROJECT / "scripts").rglob("*cases.toml"))]
SCRIPTS = sorted((PROJECT / "scripts/evidence").glob("*.py"))
BENCHMARKS = ("policy", "actor", "refresh", "bits", "learner")


class ParsedError(Exception):
    """A parser has accepted its command line."""


def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parser ends the program as soon as it has accepted a command line."""

    def only(parser: object) -> object:
        def parse(*args: object, **options: object) -> object:
            parser(*args, **options)  # type: ignore[operator]
            raise ParsedError

        return parse

    monkeypatch.setattr(tyro, "cli", only(tyro.cli))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only(argparse.ArgumentParser.parse_args))


def fences(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages; the empty one is that of blocks without."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in blocks if language in languages]


def inline(page: Path) -> list[str]:
    """The code within lines of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def commands(page: Path) -> list[list[str]]:
    """Every accel and python command of a page, as words, without what starts it under MPI."""
    lines = [line for block in fences(page, "", "bash", "sh") for line in block.splitlines()]
    lines = [line for line in lines if re.match(r"(accel|python|mpirun|srun) ", line)]
    lines += [code for code in inline(page) if re.match(r"(accel|python) \S+", code)]
    found = []
    for line in lines:
        words = [word for word in shlex.split(line, comments=True) if word not in {"…", "..."}]
        name = next((word for word in words if word in {"accel", "python"}), None)
        if name is not None:
            found.append(words[words.index(name) :])
    return found


def accept(words: Sequence[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse one command; raises SystemExit or an AccelError if it is not valid."""
    monkeypatch.chdir(directory)
    program, name, *arguments = words
    arguments = [word for word in arguments if word != "--help"]
    if program == "python":
        script = PROJECT / name
        if name == "bundle/run_policy.py":
            script = PROJECT / "accel/exporting/run_policy.py"
        assert script.is_file(), f"there is no {name}"
        if re.search(r"\b(argparse|tyro|add_argument)\b", script.read_text()):
            monkeypatch.setattr(sys, "argv", [name, *arguments])
            with pytest.raises(ParsedError):
                runpy.run_path(str(script), run_name="__main__")
        else:
            assert not arguments, f"{name} takes no arguments"
    elif name == "train" and arguments:
        with suppress(ParsedError):
            parse_training(arguments, detect_launch({}))
    else:
        assert name in COMMANDS, f"there is no accel {name}"
        if arguments or name == "doctor":
            module, _, function = COMMANDS[name][0].partition(":")
            with pytest.raises(ParsedError):
                getattr(importlib.import_module(module), function)(arguments)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory with the files that pages name."""
    run = tmp_path / "results" / "NAME"
    run.mkdir(parents=True)
    for file in (run / "config.toml", tmp_path / "run.toml", tmp_path / "sweep.toml"):
        file.write_text('env = "CartPole-v1"\n')
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_commands_of_a_page_parse(page: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands(page)
    wrong = []
    for words in found:
        try:
            with monkeypatch.context() as patch:
                if words[1] != "train" or "--init-from" in words:  # which needs a policy
                    parse_only(patch)
                accept(words, directory, patch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever refuses it is shown
            wrong.append(f"{shlex.join(words)}: {error!r}")
    assert not wrong, "\n".join(wrong)
    assert found or page.name == "glossary.md"


def test_a_wrong_command_is_noticed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (
        "accel train --objective ppo",
        "accel fly",
        "accel export results/NAME --out b --colour red",
        "python scripts/evidence/no_such.py",
        "python scripts/evidence/training_runs.py --colour red",
    ):
        with monkeypatch.context() as patch, pytest.raises((Exception, SystemExit)):
            if "train" not in line:
                parse_only(patch)
            accept(shlex.split(line), directory, patch)


@pytest.mark.long
@pytest.mark.parametrize("table", EVIDENCE, ids=lambda table: str(table.relative_to(PROJECT)))
def test_trainings_of_the_evidence_tables_parse(table: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    for name, case in load("evidence/training_runs.py").read_cases(table).items():
        for variant in case.variants:
            assert parse_training([*case.arguments, *variant.arguments], detect_launch({})), name


def test_flags_that_pages_name_exist() -> None:
    known = {f"--{name.rstrip('_').replace('_', '-')}" for name in all_options()}
    helps = [(name, []) for name in COMMANDS if name != "bench"] + [("bench", [kind]) for kind in BENCHMARKS]
    for name, before in helps:
        module, _, function = COMMANDS[name][0].partition(":")
        with redirect_stdout(io.StringIO()) as text, pytest.raises(SystemExit):
            getattr(importlib.import_module(module), function)([*before, "--help"])
        known |= set(re.findall(r"--[a-z][a-z-]+", text.getvalue()))
    known |= {"--verify"}  # of run_policy.py
    for page in PAGES:
        flags = {flag for code in inline(page) if code.startswith("--") for flag in re.findall(r"--[a-z][a-z-]+", code)}
        assert not flags - known, f"{page.relative_to(PROJECT)}: {sorted(flags - known)}"


def test_walks_through_the_program_are_real_and_short() -> None:
    text = (PROJECT / "ARCHITECTURE.md").read_text()
    walks = text.partition("## Two walks")[2].partition("\n## ")[0].split("**One ")[1:]
    assert len(walks) == 2
    for walk in walks:
        rows = re.findall(r"^\| (\d+) \| `([^`]+)` \| (.+?) \|", walk, re.MULTILINE)
        assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
        assert 10 < len({file for _, file, _ in rows}) == len(rows) <= 15
        for _, file, functions in rows:
            source = (PROJECT / file).read_text()
            for name in re.findall(r"[\w.]+", functions.replace("`", "")):
                owner, _, method = name.rpartition(".")
                assert not owner or re.search(rf"^class {owner}\b", source, re.MULTILINE), f"{file}: {name}"
                assert re.search(rf"^ *(def|class) {method}\b", source, re.MULTILINE), f"{file}: {name}"


def test_seams_name_what_exists() -> None:
    table = (PROJECT / "ARCHITECTURE.md").read_text().partition("## Seams")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) >= 10
    product = "".join(file.read_text() for file in (PROJECT / "accel").rglob("*.py"))
    for protocol, _, identity, others, tests in rows:
        names, _, path = protocol.strip().rpartition(", ")
        folder = PROJECT / ("" if path.startswith("`compressors") else "accel")
        source = (folder / path.strip("`")).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^class {name}[(:]", source, re.MULTILINE), name
        for name in re.findall(r"`([A-Z]\w+)`", identity + others):
            assert re.search(rf"^class {name}\b", product, re.MULTILINE), name
        for place in re.findall(r"`([^`]+)`", tests):
            assert list((PROJECT / "tests").glob(place)), place


def test_the_tree_has_every_package() -> None:
    tree = (PROJECT / "ARCHITECTURE.md").read_text().partition("## Tree")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in (PROJECT / "accel").glob("*/__init__.py")}
    assert set(re.findall(r"(\w+)/", tree)) == packages | {"accel", "compressors", "correctors", "monitor"}


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, PROJECT / "ARCHITECTURE.md", PROJECT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def test_no_line_of_prose_is_long() -> None:
    for page in [*PAGES, *PROJECT.glob("*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        long = [line for line in prose.splitlines() if len(line) > 140 and not line.startswith("|")]
        assert not long, f"{page}: {long[0]}"


def default_text(value: object) -> str:
    """A default as a page shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{str(value).lower()}`"


def options_table(algorithm: str) -> str:
    """An algorithm's own options, those of its store and schedule, and the defaults that it sets, as Markdown."""
    config = TrainConfig.create(algorithm=algorithm)
    rows: list[tuple[str, FieldInfo, object]] = []
    for part in (config.algorithm, config.store, config.schedule):
        fields = type(part).model_fields
        rows += [(n, f, getattr(part, n)) for n, f in fields.items() if n not in {"algorithm", "store", "schedule"}]
    fields, values = config.fields(), config.options()
    listed = {name for name, _, _ in rows} | {"algorithm", "store", "schedule"}
    set_by_some = sorted({name for model in ALGORITHMS.values() for name in model.system} - listed)
    rows += [(name, fields[name], values[name]) for name in set_by_some if name in values]
    lines = ["| option | default | meaning |", "|---|---|---|"]
    fixed = {"inference", "batch_unrolls"} if config.schedule.waits_for_policy else set()
    for name, field, value in (row for row in rows if row[0] not in fixed):
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        lines.append(f"| `{flag}` | {default_text(value)} | {field.description} |")
    return "\n".join(lines)


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_the_page_of_an_algorithm_opens_with_a_command_and_lists_its_options(algorithm: str) -> None:
    page = PROJECT / "docs" / "algorithms" / f"{algorithm}.md"
    title, _, rest = page.read_text().partition("\n\n")
    assert title.startswith("# ")
    assert rest.startswith("```\naccel train ")
    table = options_table(algorithm)
    assert table in rest, f"the options of {algorithm} are\n{table}"


def test_the_options_beside_training_are_in_their_table() -> None:
    page, config = (PROJECT / "docs" / "looking-at-runs.md").read_text(), TrainConfig.create()
    fields, values = config.fields(), config.options()
    for name in ("evaluate_every", "evaluation_episodes", "wandb"):
        flag = f"--{name.replace('_', '-')}"
        assert f"| `{flag}` | {default_text(values[name])} | {fields[name].description} |" in page, name


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_an_evidence_script_writes_nothing_on_help(script: Path, tmp_path: Path) -> None:
    if "__main__" in script.read_text():
        done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
        assert not list(tmp_path.iterdir())


def test_the_api_page_is_what_the_docstrings_say() -> None:
    page = runpy.run_path(str(PROJECT / "scripts" / "api_page.py"))["render"]()
    assert page == (PROJECT / "docs" / "api.md").read_text(), "run python scripts/api_page.py"
