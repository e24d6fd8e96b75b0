#!/bin/sh
# The reference under ThreadSanitizer: run_tsan.sh TEST... Needs clang with its OpenMP runtime and archer, which tells
# the sanitizer what OpenMP's barriers order (gcc's libgomp does not, and gives false reports).
need="clang libomp-dev libclang-rt-dev"
archer() { ls /usr/lib/llvm-*/lib/libarcher.so 2>/dev/null | tail -1; }
if ! command -v clang >/dev/null || [ -z "$(archer)" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $need >/dev/null || exit 1
    else
        echo "tsan: skipped (needs: $need)"
        exit 0
    fi
fi
build=build-tsan
make --no-print-directory CC=clang SAN=thread BUILD=$build $(for t in "$@"; do echo "$build/tests/$t"; done) || exit 1
export OMP_NUM_THREADS=4 OMP_TOOL_LIBRARIES="$(archer)" TANDEM_GPU_DIR=sim/gpus
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
export TANDEM_FUZZ_BATCHES="${TANDEM_FUZZ_BATCHES:-8}"
for t in "$@"; do
    echo "== tsan $t"
    $build/tests/$t || exit 1
done
echo "tsan: no races in $# test programs"
