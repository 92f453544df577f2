#!/usr/bin/env bash
# What only a machine with a CUDA GPU can show, in under 8 minutes. The output, with the date, is
# written to benchmarks/results/.
#
#   benchmarks/gpu_check.sh              on a GPU
#   benchmarks/gpu_check.sh --dry        the same steps on the CPU, to try the script itself
#
# PYTHON names the interpreter (one with a CUDA torch). WHEELS names a folder of wheels where there
# is no network. A step that fails is told and the next one runs; the exit status is 0 if none did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
device=cuda
[ "${1:-}" = --dry ] && device=cpu
started=$SECONDS
failed=0
log=$(mktemp)

step() { # seconds, name, command...
  local limit=$1 name=$2
  shift 2
  echo "== $name"
  timeout "$limit" "$@" || { echo "== FAILED ($?): $name"; failed=$((failed + 1)); }
}

check() {
  local models=(resnet50 gpt2 bert_base vit t5) seconds=8 pip=(-m pip install -qq)
  [ "$device" = cpu ] && models=(mlp) && seconds=2
  [ -n "${WHEELS:-}" ] && pip+=(--no-index --find-links "$WHEELS")
  "$PYTHON" -c 'import scaledl' 2>/dev/null || step 90 "install" "$PYTHON" "${pip[@]}" .
  step 30 "machine" "$PYTHON" -m scaledl doctor
  step 60 "tests that need a GPU" "$PYTHON" -m pytest -q -m gpu tests
  step 60 "layer times against kernels" \
    "$PYTHON" benchmarks/layer_times.py --device "$device" --windows 3 --least 2e-4 --json
  step 200 "overhead, eager" "$PYTHON" benchmarks/overhead.py --device "$device" \
    --models "${models[@]}" --modes single --seconds "$seconds" --json
  step 120 "overhead, compiled" "$PYTHON" benchmarks/overhead.py --device "$device" \
    --models "${models[0]}" --modes single --seconds "$seconds" --compile --json
  echo "== $device: took $((SECONDS - started)) s, $failed of the steps failed"
  return "$failed"
}

{
  echo "command: benchmarks/gpu_check.sh $*"
  check
} 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if [ "$device" = cuda ]; then
  cp "$log" "benchmarks/results/$(date +%F)-gpu_check.txt"
fi
rm -f "$log"
exit "$status"
