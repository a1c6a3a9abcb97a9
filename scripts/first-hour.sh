#!/bin/sh
# What a newcomer does in the first hour, from the wheel alone: scripts/first-hour.sh [WHEEL [EXTRA]].
# A fresh environment, a first result, operators of one's own from a string, a file and a notebook's
# cell, edited, broken and mended; then what `make install` leaves, and `make uninstall`. Says how
# long each step took; exits 1 at the first that fails.
#
#   WHEEL   else what `make wheel` writes
#   EXTRA   of the wheel: cpu, where there is no C++ compiler; notebook, for the cell
#
# scripts/first-hour.sh --in SUITE [WHEEL], as root: the same in a new system that has Python alone,
# with both extras, by pip and by uv. SUITE is Debian's or Ubuntu's: bookworm, noble; its packages are
# taken from $MIRROR, else from where debootstrap has them from.
set -eu
cd "$(dirname "$0")/.."
find_wheel() { # what was given, or one that is made
    if [ -z "$wheel" ]; then
        ${MAKE:-make} --no-print-directory wheel >"$folder/log" 2>&1 || { cat "$folder/log" && exit 1; }
        wheel=$(ls -t dist/opd-*.whl | head -n 1)
        told "make wheel: $wheel"
    fi
    wheel=$(realpath "$wheel")
}
now() { date +%s%N; }
told() { # what was done since $began
    echo "$(($(now) - began))" "$1" | awk '{ printf "%7.1f s ", $1 / 1e9; $1 = ""; print }'
    began=$(now)
}
folder=$(mktemp -d) began=$(now)

if [ "${1:-}" = --in ]; then
    suite=$2 wheel=${3:-} root=$folder/root
    leave() {
        umount "$root/proc" "$root/dev/shm" 2>/dev/null || true
        rm -rf --one-file-system "$folder"
    }
    trap leave EXIT
    find_wheel
    case $suite in
        focal | jammy | noble) parts=main,universe rules=gutsy ;;
        *) parts=main rules=sid ;;
    esac
    debootstrap --variant=minbase --components=$parts --include=python3,python3-venv,ca-certificates \
        "$suite" "$root" ${MIRROR:+"$MIRROR" $rules} \
        >"$folder/log" 2>&1 || { tail "$folder/log" && exit 1; }
    told "debootstrap $suite"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev/shm"
    cp /etc/resolv.conf "$root/etc/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # those of this machine's network, too
    mkdir -p "$root/try/scripts"
    cp "$0" "$root/try/scripts/first-hour.sh"
    cp "$wheel" "$root/try/"
    for how in pip uv; do
        echo "$suite, by $how:"
        chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin OPD_FIRST_HOUR=$how \
            SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
            sh /try/scripts/first-hour.sh "/try/$(basename "$wheel")" cpu,notebook
    done
    exit
fi

wheel=${1:-} extra=${2:-}
export OPD_SOCKET="$folder/opd.sock" XDG_CONFIG_HOME="$folder" XDG_CACHE_HOME="$folder/cache"
unset PYTHONPATH OPD_BIN OPD_LIB OPD_KERNELS VIRTUAL_ENV
end() {
    "$folder/env/bin/opctl" stop >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap end EXIT

find_wheel
python3 -m venv "$folder/env"
if [ "${OPD_FIRST_HOUR:-pip}" = uv ]; then
    "$folder/env/bin/pip" install -q --disable-pip-version-check uv
    told "uv"
    "$folder/env/bin/uv" pip install -q --python "$folder/env/bin/python" "$wheel${extra:+[$extra]}"
else
    "$folder/env/bin/pip" install -q --disable-pip-version-check "$wheel${extra:+[$extra]}" 2>&1 | grep -v WARNING || true
fi
told "a fresh environment, and the wheel in it"

cd "$folder" # no repository from here on
[ -n "$(find env -path '*opd-*.dist-info*' -name LICENSE)" ]
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

cat >load.py <<'EOF'
import contextlib, io
import numpy as np, opd
TEXT = """
//! op      twice(Tensor x) -> Tensor y
//! dtypes  float64
//! shape   x [N]
//! shape   y [N]
//! example x=[3]
//! forward
//!   kernel twice
//!   grid   1
//!   block  1
__global__ void twice(const double *x, double *y, int N)
{
    for (int i = 0; i < N; i++) {
        y[i] = 2 * x[i];
        printf("%d: %g\\n", i, y[i]);
    }
}
"""
client, other = opd.connect(), opd.connect()
x = client.tensor([1.0, 2.0])
client.load(TEXT)
said = io.StringIO()
with contextlib.redirect_stdout(said):
    assert x.twice().numpy().tolist() == [2, 4]
assert said.getvalue() == "0: 2\n1: 4\n", said.getvalue()
assert "twice" in client.ops and "twice" not in other.ops
assert client.load(TEXT.replace("2 *", "3 *")).version == 2 and x.twice().numpy().tolist() == [3, 6]
try:
    client.load("""
//! op      twice(Tensor x) -> Tensor y
//! dtypes  float64
//! formula y = 2 * z
//! example x=[3]
""")
    raise SystemExit("this is wrong, and was taken")
except opd.InvalidArgument as e:
    assert "load.py:34:21" in str(e) and "'z'" in str(e), e
assert x.twice().numpy().tolist() == [3, 6]
assert client.load("scale.cu", shared=True).__name__ == "my_scale" and "my_scale" in other.ops
assert "compiled" in {event["kind"] for event in client.events()}
client.close()
other.synchronize()
assert "my_scale" not in opd.connect().ops
EOF
env/bin/python load.py >said
told "operators from a string and a file: printf, an edit, an error with its line, whose they are"

if env/bin/python -c "import ipykernel" 2>/dev/null; then
    env/bin/python - <<'EOF'
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(cell):
    done = shell.run_cell(cell)
    return done.error_before_exec or done.error_in_exec
CELL = "%%opd\n" + open("scale.cu").read()
assert not run("%load_ext opd") and not run(CELL)
assert not run("x = client.tensor([1.0]); assert x.my_scale().numpy().tolist() == [2]")
assert "did you mean 'by'" in str(run(CELL.replace("x * by", "x * bye")))
assert not run("assert x.my_scale().numpy().tolist() == [2]") and not run("%opd_time my_scale")
EOF
    told "a notebook's cells: an operator, broken, timed"
fi

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
for way in OPD_KERNELS opd.conf "kernels add"; do
    case $way in
        OPD_KERNELS) OPD_KERNELS=$folder/kernels env/bin/python -c "import opd; assert 'my_scale' in opd.connect().ops" ;;
        opd.conf) mkdir -p opd && echo "kernels = $folder/kernels" >opd/opd.conf
            env/bin/python -c "import opd; assert 'my_scale' in opd.connect().ops"
            rm opd/opd.conf ;;
        *) env/bin/python -c "import opd; assert 'my_scale' not in opd.connect().ops"
            env/bin/opctl kernels add kernels >/dev/null
            env/bin/python -c "import opd; assert 'my_scale' in opd.connect().ops" ;;
    esac
    env/bin/opctl stop
done
env/bin/pip uninstall -q -y opd
[ ! -e env/bin/opd ] && [ ! -e env/share/opd/kernels_src ]
told "opctl, three more ways to one's folder; and uninstalled"

cd "$OLDPWD"
[ -f Makefile ] || exit 0 # the wheel alone
${MAKE:-make} --no-print-directory install PREFIX="$folder/usr" >/dev/null
for page in man1/opd.1 man1/opctl.1 man7/opd-kernel.7; do
    grep -q '^\.SH NAME' "$folder/usr/share/man/$page"
    ! command -v groff >/dev/null || [ -z "$(groff -man -Tutf8 -ww "$folder/usr/share/man/$page" 2>&1 >/dev/null)" ]
done
for program in opd opctl; do bash -n "$folder/usr/share/bash-completion/completions/$program"; done
bash -c '. "$1"; COMP_WORDS=(opctl st) COMP_CWORD=1; _opctl; [ "${COMPREPLY[*]}" = "status stop" ]' - \
    "$folder/usr/share/bash-completion/completions/opctl"
bash -c '. "$1"; COMP_WORDS=(opctl kernels a) COMP_CWORD=2; _opctl; [ "${COMPREPLY[*]}" = add ]' - \
    "$folder/usr/share/bash-completion/completions/opctl" # and no options, which begin with -
! command -v zsh >/dev/null || zsh -n "$folder/usr/share/zsh/site-functions/_opd"
# fish completes programs that it finds.
! command -v fish >/dev/null || [ "$(PATH="$folder/usr/bin:$PATH" XDG_DATA_DIRS=$folder/usr/share HOME=$folder \
    fish -c 'complete -C "opctl st"' | cut -f 1 | xargs)" = "status stop" ]
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
