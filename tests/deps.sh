#!/bin/sh
# Checks for what building, testing and plotting need, and installs what is missing: deps.sh PACKAGE...
# Nothing is asked of the network when everything is here.
missing=
have_header() { echo "#include <$1>" | ${CC:-cc} -E -xc - >/dev/null 2>&1; }
command -v "${CC:-cc}" >/dev/null || missing=1
command -v gnuplot >/dev/null || missing=1
for h in cmocka.h jansson.h ini.h zip.h omp.h; do
    case $h in cmocka.h) echo "#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>" | ${CC:-cc} -E -xc - >/dev/null 2>&1 || missing=1 ;;
    *) have_header $h || missing=1 ;; esac
done
ls /usr/lib/*/openblas-openmp/libopenblas.so /usr/lib64/openblas-openmp/libopenblas.so 2>/dev/null | grep -q . || missing=1
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "missing packages; run: sudo apt-get install -y $*" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "missing packages and no apt-get; install the equivalents of: $*" >&2
    exit 1
fi
echo "installing: $*"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq "$@" >/dev/null
