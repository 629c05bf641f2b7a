#!/usr/bin/env bash
# Runs the real-text cohorts one after another and prints each table with time and peak memory.
# Needs the real corpora: DPSYNTH_REAL_DATA, or ../shared/data beside the project.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DPSYNTH_REAL_DATA="${DPSYNTH_REAL_DATA:-$(cd .. && pwd)/shared/data}"
test -d "$DPSYNTH_REAL_DATA" || { echo "skipped: no real corpora at $DPSYNTH_REAL_DATA"; exit 0; }
homes="${DPSYNTH_HOME:-$PWD/.dpsynth-real-text}"
export GOMP_SPINCOUNT=10000 HF_HUB_OFFLINE=1
for cohort in "${@:-yelp_epsilon_10 ag_news_epsilon_10 yelp_epsilon_3 ag_news_epsilon_3}"; do
  for name in $cohort; do
    echo "== $name"
    # Cohorts of one corpus differ in ε alone. Two budgets over one source are refused in one house,
    # so each has a house of its own.
    export DPSYNTH_HOME="$homes/$name" DPSYNTH_DATASETS="$homes/$name/datasets"
    mkdir -p "$DPSYNTH_DATASETS"
    cp benchmarks/real_text/english.yaml "benchmarks/real_text/$name.yaml" "$DPSYNTH_DATASETS"
    .venv/bin/python - "$name" <<'PY'
import resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.call([".venv/bin/dpsynth", "run", sys.argv[1], "--yes"])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
print(f"{time.monotonic() - start:.0f} s, peak memory {peak:.2f} GiB, exit code {code}")
PY
  done
done
