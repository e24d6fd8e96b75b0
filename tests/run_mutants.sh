#!/bin/sh
# Builds each planted fault of mutants.txt (only the changed file, then one link) and requires its test to fail.
build=${BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make --no-print-directory -s link-line >"$work/line" || exit 1
cc=$(sed -n 1p "$work/line") flags=$(sed -n 2p "$work/line") libs=$(sed -n 3p "$work/line") objects=$(sed -n 4p "$work/line")
export TANDEM_FUZZ_BATCHES=12 TANDEM_GPU_DIR="$PWD/sim/gpus"
total=0 killed=0
trimmed() { printf '%s' "$1" | sed 's/^ *//; s/ *$//'; }
while IFS='|' read -r file old new test; do
    case $file in '#'* | '') continue ;; esac
    file=$(trimmed "$file") test=$(trimmed "$test")
    unit=${file#*>} file=${file%>*} # "header>file.c": the fault is in the header, as file.c sees it
    OLD=$(trimmed "$old") NEW=$(trimmed "$new")
    export OLD NEW
    total=$((total + 1))
    mkdir -p "$work/$(dirname "$file")"
    # a line that holds "||" cannot be listed: the bar separates fields
    if ! perl -0pe 'BEGIN{$n=0} $n += s/\Q$ENV{OLD}\E/$ENV{NEW}/; END{exit($n == 1 ? 0 : 1)}' "$file" >"$work/$file"; then
        echo "mutants: $file: does not apply any more: $OLD"
        exit 1
    fi
    source=$work/$file
    [ "$unit" = "$file" ] || source=$unit
    own=$(make --no-print-directory -s file-flags UNIT="${unit%.c}")
    if ! $cc -I"$work" $flags $own -w -c -o "$work/mutant.o" "$source" 2>"$work/log"; then
        echo "mutants: $file: does not compile: $OLD -> $NEW"; cat "$work/log"; exit 1
    fi
    others=$(echo "$objects" | tr ' ' '\n' | grep -v "^$build/${unit%.c}.o$" | tr '\n' ' ')
    $cc $flags -o "$work/test" "$build/tests/$test.o" "$work/mutant.o" $others $libs || exit 1
    if timeout 60 "$work/test" >/dev/null 2>&1; then
        echo "mutants: SURVIVED: $file: $OLD -> $NEW ($test)"
    else
        killed=$((killed + 1))
    fi
    rm -f "$work/$file"
done <tests/mutants.txt
echo "mutants: $killed of $total killed"
[ "$killed" = "$total" ]
