#!/usr/bin/env bash
# On a machine with one NVIDIA GPU: builds the addon for it, then holds it to the same oracles as on the CPU (parity
# with transformers, gradients, a training step, sampling) and syncs weights from a rank to two engines, all on that GPU,
# the bytes over Gloo. Under four minutes with 8 cores or more. Needs Node.js, npm's packages (npm ci), the bundles
# (npm run build), g++, and a python3 whose torch is a CUDA build; downloads nothing.
#   native/device-check.sh [MEGABYTES of the synced model, default 200]
set -euo pipefail
cd "$(dirname "$0")/.."
megabytes=${1:-200}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
python3 -c 'import torch; print("torch", torch.__version__, "GPU:", torch.cuda.is_available(), torch.cuda.nccl.version())'
torch=$(python3 -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
export MOLT_DEVICE=cuda MOLT_LIBTORCH=$torch MOLT_CACHE=${MOLT_CACHE:-$PWD/build/device-cache}
mkdir -p "$MOLT_CACHE"

phase() {
  local name=$1 started=$SECONDS
  shift
  echo "== $name"
  "$@"
  echo "== $name: $((SECONDS - started)) s"
}

# The addon alone: packages and bundles are there.
build() {
  node -e '
    import("./native/setup/addon.mjs").then(async ({ addonPhase }) => {
      const phase = addonPhase();
      if (!phase.done()) await phase.run(console.log);
      const { versions } = await import("molt-native");
      console.log(versions());
      if (!versions().cuda) throw new Error("the addon sees no GPU");
    }).catch((error) => { console.error(error.message); process.exit(1); });'
}

phase "build" build
phase "parity and training step" npx vitest run --project unit \
  native/test/model.test.ts native/test/model-dtype.test.ts native/test/lora.test.ts native/test/sampler.test.ts
phase "sync to two engines" node runner/bench/start.mjs sync "$megabytes"
echo "device check passed in $SECONDS s"
