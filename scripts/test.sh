#!/bin/sh
# The whole test run, step by step: scripts/test.sh cpu|quick|endurance-gpu [PREFIX...]. Each step is a target of the
# Makefile and can be run alone; with PREFIXes those run whose names begin with one of them
# (`cpu functional ops`). A step that fails does not stop the others, except the build; what it
# printed last is printed again at the end. The last line is "N passed, N failed", counting steps.
# OPD_AGAIN=1: a step other than a build that fails is run once more; if it passes then, it has
# passed, and the end tells that it is unsteady. That is a defect of opd or of the test.
set -u
cd "$(dirname "$0")/.."
which=${1:-}
[ $# = 0 ] || shift
prefixes=$*
passed=0 failed=0 failures= unsteady= start=$(date +%s)
printed=$(mktemp -d) # what each step has, in a file of its name; of the second time in NAME.again
trap 'rm -rf "$printed"' EXIT
trap 'exit 130' INT TERM

is_chosen() { # name of a step
    [ -n "$prefixes" ] || return 0
    for prefix in $prefixes; do
        case $1 in "$prefix"*) return 0 ;; esac
    done
    return 1
}

# Seconds of processors that all steps up to now have had.
read_cpu() {
    times >"$printed/.cpu" # of this shell: not in a pipe
    cpu=$(sed -n 's/m/ /g; s/s//g; 2p' "$printed/.cpu" | awk '{ print int(60 * ($1 + $3) + $2 + $4) }')
}

attempt() { # file, command...
    file=$printed/$1
    shift
    mkfifo "$printed/.pipe"
    tee "$file" <"$printed/.pipe" &
    tee=$!
    "$@" >"$printed/.pipe" 2>&1
    status=$?
    rm "$printed/.pipe"
    # What the step has left behind may keep the pipe open.
    (sleep 5 && kill "$tee") >/dev/null 2>&1 &
    wait "$tee"
    kill $! 2>/dev/null
    return "$status"
}

is_tried_again() { # name
    case $1 in *build) return 1 ;; esac
    [ "${OPD_AGAIN:-}" = 1 ] && echo "---- $1: FAILED; once more, which tells whether it does each time"
}

step() { # name, command...
    name=$1
    shift
    is_chosen "$name" || return 0
    echo
    echo "==== $name"
    began=$(date +%s)
    read_cpu
    cpu_began=$cpu
    if attempt "$name" "$@"; then
        passed=$((passed + 1)) ended=ok
    elif is_tried_again "$name" && attempt "$name.again" "$@"; then
        passed=$((passed + 1)) ended=unsteady unsteady="$unsteady $name"
    else
        failed=$((failed + 1)) ended=FAILED failures="$failures $name"
    fi
    read_cpu
    echo "---- $name: $ended, $(($(date +%s) - began)) s, of processors $((cpu - cpu_began)) s"
    [ $ended != FAILED ]
}

show_last() { # file
    [ -s "$printed/$1" ] || return
    echo
    echo "==== $1: its last lines"
    tail -n 60 "$printed/$1"
}

finish() {
    [ $((passed + failed)) != 0 ] || { echo "no step's name begins with: $prefixes" && exit 2; }
    for name in $unsteady $failures; do
        show_last "$name"
    done
    for name in $failures; do
        show_last "$name.again"
    done
    echo
    for name in $unsteady; do
        echo "unsteady (failed once, passed when run again): $name"
    done
    [ -z "$failures" ] || echo "failed:$failures"
    read_cpu
    echo "the whole run took $(($(date +%s) - start)) s, of processors $cpu s"
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}

run() { ${MAKE:-make} --no-print-directory "$@"; }

# Of operators and opd.torch most of what tests take is the host's compiler at work on kernels; there it works less, but
# for tests that are marked as_shipped. Not where kernels are few, or already in the cache as users have them.
quickly() { run OPD_CXX="$PWD/tests/quick-c++.sh" "$@"; }

case $which in
cpu)
    prefixes="${prefixes:+build $prefixes}"
    step build run -j"$(nproc)" all programs || finish
    step unit run unit
    # The CUDA backend on a stand-in for NVIDIA's driver; of the tests, those that ask it for most.
    files="tests/faults/test_checked.py tests/faults/test_first_run.py tests/faults/test_postmortem.py"
    for name in done_word graph_order graphs lanes libopd_lanes rows spare suspect; do
        files="$files tests/functional/test_$name.py"
    done
    # Beside it lint: each keeps one processor busy.
    step lint+standin run -j2 -Otarget LD_LIBRARY_PATH="$PWD/build/tests" DEVICE=cuda:0 TESTS="$files" \
        lint conformance some
    step compile-all run ARCHS=sm_75,sm_90,sm_120 compile-all # oldest, usual, newest; all are six
    # What asan-functional has is not run twice, but what is held to less there: make functional has all.
    step functional run TESTS="tests/functional -m 'unsanitized or in_both'" some
    step functional-pure run functional-pure
    step ops quickly ops
    step torch quickly torch
    files= # those whose calls are not mostly compiled code's: make torch-isolated has all
    for name in cuda daemons edits in_place layers namespace ops options process training; do
        files="$files tests/torch/test_torch_$name.py"
    done
    step torch-isolated quickly OPD_ISOLATED=1 TESTS="$files" some
    step reload run reload
    step faults run faults
    # Each of these keeps one processor busy.
    step examples+first-hour run -j2 -Otarget examples first-hour
    step asan-build run asan-build
    step asan-unit run asan-unit
    step asan-functional run asan-functional
    step conformance run -j2 -Otarget conformance asan-conformance
    # Models wait more than they work; make model draws a new seed.
    step model+fuzz run -j4 -Otarget SECONDS=60 SEED=1 FUZZ_SECONDS=5 model asan-model fuzz fuzz-daemon
    ;;
quick) # a minute on two cores: each layer, by the tests that find most
    prefixes="${prefixes:+build $prefixes}"
    step build run -j"$(nproc)" all programs || finish
    step lint+unit run -j2 -Otarget lint unit
    files=
    for name in tensors views bad_requests client_tensors client_ops memory reload_clients upgrade; do
        files="$files tests/functional/test_$name.py"
    done
    step functional run TESTS="$files" some
    step ops quickly TESTS="tests/ops/test_ops.py -k 'relu or gelu or lltm-'" some
    step model run SECONDS=5 model
    ;;
endurance-gpu)
    step torch-isolated run PREBUILT=1 DEVICE=cuda:0 torch-isolated
    step soak run PREBUILT=1 DEVICE=cuda:0 soak
    step soak-torch run PREBUILT=1 DEVICE=cuda:0 soak-torch
    step endurance run PREBUILT=1 DEVICE=cuda:0 endurance
    step bench run PREBUILT=1 DEVICE=cuda:0 bench
    ;;
*)
    echo "usage: scripts/test.sh cpu|quick|endurance-gpu [PREFIX...]" >&2
    exit 2
    ;;
esac
finish
