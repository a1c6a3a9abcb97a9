#!/bin/sh
# What a newcomer does in the first hour, from the wheel alone: scripts/first-hour.sh [WHEEL [EXTRA]].
# A fresh environment, a first result, an operator of one's own, edited, broken and mended; then what
# `make install` leaves, and `make uninstall`. Says how long each step took; exits 1 at the first that fails.
#
#   WHEEL   else what `make wheel` writes
#   EXTRA   of the wheel: cpu, where there is no C++ compiler
set -eu
cd "$(dirname "$0")/.."
wheel=${1:-} extra=${2:-}
folder=$(mktemp -d)
export OPD_SOCKET="$folder/opd.sock" XDG_CONFIG_HOME="$folder" XDG_CACHE_HOME="$folder/cache"
unset PYTHONPATH OPD_BIN OPD_LIB OPD_KERNELS VIRTUAL_ENV
end() {
    "$folder/env/bin/opctl" stop >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap end EXIT

now() { date +%s%N; }
told() { # what was done since $began
    echo "$(($(now) - began))" "$1" | awk '{ printf "%7.1f s ", $1 / 1e9; $1 = ""; print }'
    began=$(now)
}

began=$(now)
if [ -z "$wheel" ]; then
    ${MAKE:-make} --no-print-directory wheel >"$folder/log" 2>&1 || { cat "$folder/log" && exit 1; }
    wheel=$(ls -t dist/opd-*.whl | head -n 1)
    told "make wheel: $wheel"
fi
wheel=$(realpath "$wheel")

python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check "$wheel${extra:+[$extra]}" 2>&1 | grep -v WARNING || true
told "a fresh environment, and the wheel in it"

cd "$folder" # no repository from here on
mkdir kernels
cat >scale.cu <<'EOF'
//! op      my_scale(Tensor x, *, float by=2.0) -> Tensor y
//! doc     x * by, elementwise.
//! dtypes  float32 float64
//! formula y = x * by
//! example x=[3,4]
EOF

cat >first.py <<'EOF'
import sys
import numpy as np, opd
client = opd.connect()
x = client.tensor(np.array([1.0, -1.0], np.float32))
assert abs(x.gelu(approximate="none").numpy()[0] - 0.8413447) < 1e-6
EOF
env/bin/python first.py
told "opd.connect() starts the daemon; the first result"

cat >own.py <<'EOF'
import pathlib, time, warnings
import numpy as np, opd
source = pathlib.Path("scale.cu").read_text()
saved = pathlib.Path("kernels/my_scale.cu")
saved.write_text(source)
client = opd.connect(kernels="kernels")
x = client.tensor(np.array([1.0, -1.0]))
def step(what, began):
    print(f"{time.monotonic() - began:11.3f} s {what}")
began = time.monotonic()
assert x.my_scale().numpy().tolist() == [2, -2]
y, ctx = client.ops.my_scale.forward(x, by=3.0)
assert ctx.backward(client.tensor(np.ones(2)))[0].numpy().tolist() == [3, 3]
step("the first call and gradient of an operator of one's own", began)
began = time.monotonic()
saved.write_text(source.replace("x * by", "x * by + 1"))
client.reload()
assert x.my_scale().numpy().tolist() == [3, -1]
step("edited: the same tensor, the new numbers", began)
began = time.monotonic()
saved.write_text(source.replace("x * by", "x * bye"))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    client.reload()
    assert x.my_scale().numpy().tolist() == [3, -1]
assert "did you mean 'by'" in str(told[0].message), told
step("broken: told so, and what served goes on", began)
began = time.monotonic()
saved.write_text(source)
client.reload()
assert x.my_scale().numpy().tolist() == [2, -2]
step("mended", began)
EOF
env/bin/python own.py
told "a folder of one's own, an operator in it, edited, broken, mended"

env/bin/opctl check kernels/my_scale.cu >/dev/null
env/bin/opctl ops my_scale | grep -q 'x \* by'
env/bin/opctl stop
env/bin/pip uninstall -q -y opd
[ ! -e env/bin/opd ] && [ ! -e env/share/opd/kernels_src ]
told "opctl; and uninstalled"

cd "$OLDPWD"
${MAKE:-make} --no-print-directory install PREFIX="$folder/usr" >/dev/null
for page in man1/opd.1 man1/opctl.1 man7/opd-kernel.7; do
    grep -q '^\.SH NAME' "$folder/usr/share/man/$page"
    ! command -v groff >/dev/null || [ -z "$(groff -man -Tutf8 -ww "$folder/usr/share/man/$page" 2>&1 >/dev/null)" ]
done
for program in opd opctl; do bash -n "$folder/usr/share/bash-completion/completions/$program"; done
! command -v zsh >/dev/null || zsh -n "$folder/usr/share/zsh/site-functions/_opd"
! command -v fish >/dev/null || fish --no-execute "$folder"/usr/share/fish/vendor_completions.d/*.fish
# Each path that the installed README names is there, below its documents.
sed -n '/^```/,/^```/!p' "$folder/usr/share/doc/opd/README.md" |
    grep -oE '`[a-z_]+(/[A-Za-z_0-9.-]+)+`|\]\([a-z]+/[^)]*\)' | tr -d '`()]' | sort -u |
    while read -r path; do
        case $path in dist/* | build/* | */*opd.sock) continue ;; esac
        ls "$folder/usr/share/doc/opd/$path" >/dev/null || { echo "dead link: $path" && exit 1; }
    done
for again in 1 2; do ${MAKE:-make} --no-print-directory uninstall PREFIX="$folder/usr" >/dev/null; done
left=$(find "$folder/usr" ! -type d)
[ -z "$left" ] || { echo "left behind: $left" && exit 1; }
told "make install, its manual, completions and documents; make uninstall"
