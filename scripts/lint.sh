#!/bin/sh
# Rules of the tree that a compiler does not check. Errors end it with 1; hints show where to look.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
failed=0

error() {
    echo "lint: $*"
    failed=1
}

# fence PATTERN ALLOWED: no file but those whose path matches ALLOWED may include what matches PATTERN.
fence() {
    bad=$(grep -rlE "#[[:space:]]*include [<\"]($1)" server client --include='*.[ch]' | grep -vE "$2")
    [ -z "$bad" ] || error "<$1> may be included only in $2, not in:" $bad
}
fence 'uv\.h' '^server/(base/turn\.|main\.c|broker\.|roof\.|stop\.|wire/|device/|kernels/|request/|upgrade/)'
fence 'msgpack(\.h|/)' '^(server/wire/(msg|value)\.c|client/)'
fence 'cuda_driver\.h' '^server/executor/'
fence 'cuda\.h|nvrtc\.h|cuda_runtime(_api)?\.h' '^$' # the few we need we declare ourselves

# Rooms know those below them alone.
"$PYTHON" scripts/rooms.py || failed=1

sources=$(find server client kernels_src tests protocol examples scripts -type f \
    -not -path 'tests/fuzz/corpus/*' \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.sh' \))
without_tabs=$(echo "$sources" | grep -v '\.sh$')
c_files=$(echo "$sources" | grep '\.c$')

# Lines: C has at most 100 columns, which 'make format' sees to; the rest 125, directives any number.
long() {
    found=$(LC_ALL=C.UTF-8 grep -nE "^.{$1,}" $2 | grep -v '://!' | cut -c 1-100)
    [ -z "$found" ] || { printf '%s\n' "$found" && error "lines of more than $3"; }
}
long 101 "$(echo "$sources" | grep '\.[ch]$')" '100 columns: make format'
long 126 "$(echo "$sources" | grep -v '\.[ch]$')" '125 columns'
grep -nE '[[:space:]]$' $sources && error "white space at the end of the lines above"
grep -nP '\t' $without_tabs && error "tabs in the lines above"
grep -nE '(/home/|/root/|/Users/)[A-Za-z]' $sources README.md HACKING.md Makefile |
    grep -v '^scripts/lint\.sh' && error "a path of someone's machine in the lines above"

for script in scripts/*.sh .ci/run; do
    sh -n "$script" || failed=1
done
sed -n '/^```cuda$/,/^```$/p' README.md | sed '1d;$d' | cmp -s - examples/softplus.cu ||
    error "README.md does not hold examples/softplus.cu as it is"
"$PYTHON" protocol/gen_protocol.py --check || failed=1
if "$PYTHON" -c 'import mypy' 2>/dev/null; then
    "$PYTHON" -m mypy --strict --config-file client/python/pyproject.toml --cache-dir build/mypy \
        --no-error-summary client/python/opd || failed=1
else
    echo "lint: no mypy here, the types of client/python are not checked"
fi

# Hints: they show where to look; a good reason beats a number.
wc -l $sources | awk '$2 != "total" && $1 > 500 { print "hint: " $2 " has " $1 " lines, aim for 500" }'
awk '
    /^[A-Za-z_].*\(/ && !/;[[:space:]]*$/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
    /^\{$/ { from = FNR }
    /^\}$/ && from {
        size = FNR - from - 1
        if (size > 60) print "hint: " FILENAME ":" from ": " name "() has " size " lines, aim for 60"
        from = 0
    }' $c_files
format=$(command -v clang-format || ls /usr/bin/clang-format-[0-9]* 2>/dev/null | tail -n 1)
if [ -n "$format" ]; then
    off=$(for f in $c_files; do
        "$format" --dry-run --Werror "$f" >/dev/null 2>&1 || echo "$f"
    done | wc -l)
    [ "$off" = 0 ] || echo "hint: $off .c files differ from 'make format'"
fi

[ "$failed" = 0 ] && echo "lint: ok"
exit "$failed"
