#!/bin/sh
# Enforces the map of the tree: which directory may include what, and that only lab/ prints, reads files or exits.
#   sched/           includes sched/ only; no I/O, BLAS, OpenMP, clock, randomness
#   ref/ sim/ cuda/  include sched/ and themselves
#   lab/ tests/      include everything
status=0
complain() { echo "check-includes: $1" >&2; status=1; }
check() { # directory, allowed prefixes
    dir=$1; shift
    allowed=$(printf '|%s/' "$@"); allowed=${allowed#|}
    bad=$(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$dir"/*.c "$dir"/*.h 2>/dev/null | grep -vE "\"($allowed)")
    [ -z "$bad" ] || complain "$dir/ may include only: $*
$bad"
}
check sched sched
check ref ref sched
check sim sim sched
check cuda cuda sched
bad=$(grep -nE '<(stdio|cblas|omp|time|unistd|pthread)\.h>' sched/*.[ch] | grep -vE '^sched/(status|policy)\.c:.*<stdio\.h>')
[ -z "$bad" ] || complain "sched/ is pure (stdio only to format reasons):
$bad"
bad=$(grep -nE '\b(printf|puts|putchar|fprintf|fputs|fopen|exit|abort|getenv|rand|srand|time|clock)[[:space:]]*\(' sched/*.c ref/*.c sim/*.c cuda/*.c | grep -vE '(snprintf|vsnprintf)')
[ -z "$bad" ] || complain "only lab/ prints, opens files, reads the environment or exits:
$bad"
names=$(find sched ref sim cuda lab tests plots -maxdepth 1 -name '*.[ch]' -exec basename {} \; | sort | uniq -d)
[ -z "$names" ] || complain "file names are unique in the tree: $names"
[ $status = 0 ] && echo "check-includes: ok"
exit $status
