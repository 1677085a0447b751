#!/usr/bin/env bash
# Tries fedrec on a machine with a CUDA device, Python 3.12 and its own torch, but no network.
#
#   benchmarks/on_a_device.sh --prepare   on a machine with a network: fetches wheels and data
#   benchmarks/on_a_device.sh             on the machine with the device: at most eight minutes
#
# The tree travels with build/on-a-device, together at most 64 MiB. torch is the machine's, and so
# are numba and pyarrow, whose wheels are too large. Every step has a time limit of its own, prints
# as it goes, and a step that fails stops no other. All of it is also in $OUT/on_a_device.log, or in
# build/on-a-device.log without OUT; the rows of the last table are in .jsonl beside it.
#
#   FEDREC_DEVICE=cpu   tries all of it on the processor, in place of cuda
#   TIMES=2             of the users of MovieLens-100K, in place of 100
#   PYTHON=python3.12   the Python that has torch; python3 by default
#   ENVIRONMENT=FOLDER  where the packages are installed; in the temporary folder by default

set -u
cd "$(dirname "$0")/.." || exit 1
carried=$PWD/build/on-a-device
python=${PYTHON:-python3}
most_mib=64
# What pyproject.toml asks for, and what the tests and an editable install need.
needed=(
  blake3 cryptography grpcio idna numpy prometheus-client protobuf pydantic rich safetensors structlog
  typer zstandard grpcio-health-checking grpcio-reflection tenseal gmpy2 starlette threadpoolctl uvicorn
  hypothesis pytest pytest-timeout pytest-xdist hatchling editables pip
)

prepare() {
  mkdir -p "$carried/wheels" || exit 1
  rm -rf "$carried"/wheels/* "$carried"/data/compiled
  # pip takes each of these for exactly that version of glibc, and no older one.
  local platforms=()
  for glibc in 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
  "$python" -m pip download --quiet --only-binary=:all: --implementation cp --python-version 3.12 \
    "${platforms[@]}" --platform manylinux2014_x86_64 --constraint constraints.txt \
    --dest "$carried/wheels" "${needed[@]}" || exit 1
  FEDREC_CACHE=$carried/data PYTHONPATH=common "$python" -B -c \
    'from fedrec.data import fetch_ml_100k; fetch_ml_100k()' ||
    echo "MovieLens-100K could not be fetched; made-up data of its size will do."
  local folder tree
  folder=$(du -sk --apparent-size "$carried" | cut -f1)
  tree=$(git ls-files -z | du -ck --apparent-size --files0-from=- | tail -n 1 | cut -f1)
  echo "$((folder / 1024)) MiB in $carried, and $((tree / 1024)) MiB of the tree"
  if [ $((folder + tree)) -gt $((most_mib * 1024)) ]; then
    echo "Together they are more than $most_mib MiB. Take something out of 'needed' in $0." >&2
    exit 1
  fi
}

if [ "${1:-}" = --prepare ]; then
  prepare
  exit
elif [ $# -gt 0 ]; then
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
  exit 2
fi

output=${OUT:-$PWD/build}
log=$output/on_a_device.log rows=$output/on_a_device.jsonl
mkdir -p "$output" || exit 1
: >"$log"
: >"$rows"
begun=$SECONDS
all_seconds=470
environment=${ENVIRONMENT:-${TMPDIR:-/tmp}/fedrec-on-a-device}
export PYTHONUNBUFFERED=1 FEDREC_CACHE=$carried/data NUMBA_CACHE_DIR=$environment/compiled
# The machine's own plugins of pytest are made for its own versions.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export FEDREC_DEVICE=${FEDREC_DEVICE:-cuda}

say() { echo "$*" | tee -a "$log"; }

# step NAME SECONDS COMMAND...: run a command for at most so long, and note how it ended.
step() {
  local name=$1 limit=$2 left=$((all_seconds - SECONDS + begun)) since=$SECONDS ended
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  say ""
  if [ "$limit" -lt 5 ]; then
    say "== $name: no time is left"
    ended="no time was left"
  else
    say "== $name, at most $limit s"
    SECONDS_LEFT=$limit timeout --kill-after=5 "$limit" "$@" 2>&1 | tee -a "$log"
    local code=${PIPESTATUS[0]}
    case $code in
      0) ended=done ;;
      124 | 137) ended="stopped after $limit s" ;;
      *) ended="failed, exit code $code" ;;
    esac
  fi
  say "== $name: $ended, $((SECONDS - since)) s"
  printf '{"what": "step: %s", "device": "%s s", "remark": "%s"}\n' \
    "$name" "$((SECONDS - since))" "$ended" >>"$rows"
  [ "$ended" = done ]
}

# A virtual environment that finds the machine's packages behind its own. The machine's Python may
# be a virtual environment itself, whose packages --system-site-packages would not find.
install() {
  rm -rf "$environment"
  "$python" -m venv --without-pip "$environment" || return
  "$python" -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
    >"$(echo "$environment"/lib/python3.*/site-packages)/machine.pth" || return
  local pip=("$environment/bin/python" "$(echo "$carried"/wheels/pip-*.whl)/pip" install --quiet
    --disable-pip-version-check --no-index --no-deps)
  "${pip[@]}" --no-compile "$carried"/wheels/*.whl || return
  "${pip[@]}" --no-build-isolation --editable .
}

export -f install
export environment python carried
trial=("$environment/bin/python" benchmarks/bench_device.py --rows "$rows")

if ! ls "$carried"/wheels/*.whl >/dev/null 2>&1; then
  say "There are no wheels. Run $0 --prepare on a machine with a network, and bring $carried along."
  exit 1
fi
step install 60 bash -c install || exit 1
step versions 30 "${trial[@]}" versions
step "pytest -m cuda" 110 "${trial[@]}" tests
step federation 70 "${trial[@]}" federation
step memory 60 "${trial[@]}" memory
step rounds 260 "${trial[@]}" rounds --times "${TIMES:-100}"
"${trial[@]}" table 2>&1 | tee -a "$log"
