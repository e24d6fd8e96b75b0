#!/bin/sh
# Test programs under valgrind's memcheck: run_valgrind.sh TEST... It shows the program a CPU without AVX-512.
if ! command -v valgrind >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null || exit 1
    else
        echo "valgrind: skipped (not installed)"
        exit 0
    fi
fi
build=${BUILD:-build}
make --no-print-directory $(for t in "$@"; do echo "$build/tests/$t"; done) || exit 1
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive TANDEM_GPU_DIR=sim/gpus TANDEM_FUZZ_BATCHES="${TANDEM_FUZZ_BATCHES:-2}"
for t in "$@"; do
    echo "== valgrind $t"
    # possibly lost: what OpenMP's threads hold at exit
    valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
        --suppressions=tests/valgrind.supp $build/tests/$t || exit 1
done
echo "valgrind: clean in $# test programs"
