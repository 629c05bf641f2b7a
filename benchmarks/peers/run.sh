#!/usr/bin/env bash
# Private decoding beside its public implementations, out of process: the same model, prompts,
# batch size, clip and tokens, one thread, processor seconds, rounds interleaved.
#
#     benchmarks/peers/run.sh          ROUNDS=3 DOCUMENTS=32 BATCH=8 TOKENS=128 may be set, and
#                                      VLLM=.venv-vllm/bin/python for `decoder: vllm` (make test-vllm)
#
# Peers: InvisibleInk (PyPI, GPL-3: installed into an environment of its own, never into ours) and
# its authors' reimplementation of Amin et al. 2024 (GitHub). Their code is neither copied nor
# imported here. Where one cannot be had, that is said and the rest runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-$PWD/.venv/bin/python}"
here="$PWD/benchmarks/peers"
work="${DPSYNTH_PEERS:-${TMPDIR:-/tmp}/dpsynth-peers}"
repository="${DPSYNTH_PEER_REPOSITORY:-https://github.com/cerai-iitm/InvisibleInk-Experiments}"
commit=264cf4d
export PYTHONPATH="$PWD" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false HF_TOKEN=unused
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
export ROUNDS="${ROUNDS:-3}" DOCUMENTS="${DOCUMENTS:-32}" BATCH="${BATCH:-8}" TOKENS="${TOKENS:-128}"

mkdir -p "$work"
rm -f "$work"/*.times
"$python" "$here/inputs.py" "$work"

peers=()
if [ ! -x "$work/venv/bin/python" ]; then
  "$python" -m venv "$work/venv"
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
fi
if "$work/venv/bin/pip" install -q --no-deps invink==0.1.0 pandas accelerate python-dateutil six \
    > "$work/pip.log" 2>&1; then
  "$work/venv/bin/python" "$here/patch_invink.py"
  peers+=(invink)
else
  echo "skipped: invink 0.1.0 cannot be installed ($work/pip.log)"
fi
if [ -d "$work/amin" ] || {
    git clone -q "$repository" "$work/amin.part" > "$work/git.log" 2>&1 \
      && git -C "$work/amin.part" checkout -q "$commit" && mv "$work/amin.part" "$work/amin"; }; then
  "$work/venv/bin/python" -c 'import pandas' 2> /dev/null && peers+=(amin) \
    || echo "skipped: the reimplementation of Amin et al. 2024 needs pandas ($work/pip.log)"
else
  rm -rf "$work/amin.part"
  echo "skipped: $repository cannot be fetched ($work/git.log)"
fi

for round in $(seq "$ROUNDS"); do
  for peer in ${peers[@]+"${peers[@]}"}; do
    echo "round $round of $ROUNDS: $peer" >&2
    "$work/venv/bin/python" "$here/${peer}_peer.py" "$work" > "$work/$peer.log" 2>&1 \
      || { echo "skipped: $peer does not run here ($work/$peer.log)"; continue; }
    "$python" "$here/ours.py" "$work" "$peer" 2> /dev/null
    "$python" "$here/ours.py" "$work" "$peer" exact 2> /dev/null
    if [ -n "${VLLM:-}" ]; then
      "$VLLM" "$here/ours.py" "$work" "$peer" vllm > "$work/vllm.log" 2>&1 \
        || echo "skipped: decoder vllm does not run here ($work/vllm.log)"
    fi
  done
done
"$python" "$here/report.py" "$work"
