#!/bin/sh
# Runs one fuzzer: scripts/fuzz.sh BUILD fuzz_NAME SECONDS
# Seeds: tests/fuzz/corpus/NAME, of operators those of tests/torch/ too; words: tests/fuzz/NAME.dict. New inputs stay
# in BUILD/corpus/NAME.
set -eu
build=$1 program=$2 seconds=$3
name=${program#fuzz_}
mkdir -p "$build/corpus/$name" "$build/found"
seeds=tests/fuzz/corpus/$name
[ -d "$seeds" ] || seeds=
[ "$name" != op ] || seeds="$seeds tests/torch/kernels"
dict=tests/fuzz/$name.dict
[ -f "$dict" ] || dict=
log=$build/found/$program.log
echo "$program: $seconds s, starting from $([ -z "$seeds" ] || ls $seeds | wc -l) files"
if ! "$build/tests/fuzz/$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -close_fd_mask=1 -artifact_prefix="$build/found/$program-" ${dict:+-dict="$dict"} \
    "$build/corpus/$name" $seeds >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$program: failed; the input is in $build/found/" >&2
    exit 1
fi
tail -n 1 "$log"
