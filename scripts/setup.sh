#!/bin/sh
# Installs what is missing on a Debian or Ubuntu machine. Where nothing is, it does nothing and
# needs no network.
#
#   scripts/setup.sh build    compilers and libraries
#   scripts/setup.sh demo     and a Python with msgpack, numpy, pillow: .venv, or the system's own
#   scripts/setup.sh test     and what the tests need, in .venv
#
set -eu
cd "$(dirname "$0")/.."
level=${1:-test}
PYTHON=${PYTHON:-python3}

say() { echo "setup: $*"; }
die() {
    echo "setup: $*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# ---- packages of the system

have_header() { have gcc && printf '%s\n' "$@" | gcc -E -x c - >/dev/null 2>&1; }

# Some clang that links a fuzzer; prints nothing.
have_fuzzer() {
    for c in clang $(ls /usr/bin | grep -E '^clang-[0-9]+$'); do
        have "$c" || continue
        echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p && n < 0; }' |
            "$c" -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null && return 0
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "needs root or sudo for: $*"
    fi
}

have_python_h() {
    [ -f "$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])' 2>/dev/null)/Python.h" ]
}

# What is missing: packages, and two words for those whose name depends on the system.
missing() {
    have gcc || echo gcc
    have g++ || echo g++
    have make || echo make
    have pkg-config || echo pkg-config
    have_header '#include <stdio.h>' || echo libc6-dev
    have_header '#include <uv.h>' || echo libuv1-dev
    have_header '#include <msgpack.h>' || echo @msgpack
    if [ "$level" != build ] && ! python_ready; then
        have python3 || echo python3
        "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
    fi
    if [ "$level" = test ]; then
        have_header '#include <setjmp.h>' '#include <stdarg.h>' '#include <stddef.h>' \
            '#include <stdint.h>' '#include <cmocka.h>' || echo libcmocka-dev
        have valgrind || echo valgrind
        case $(command -v "$PYTHON") in
        /usr/bin/*) have_python_h || echo python3-dev ;;
        esac
        have_fuzzer || echo @clang
        ls /usr/lib/*/libopenblas.so.0 >/dev/null 2>&1 || echo libopenblas0
        # A client in another language, from a library that knows nothing of opd.
        lua5.1 -e 'require "mpack"; require "socket.unix"' 2>/dev/null ||
            echo "lua5.1 lua-mpack lua-socket"
    fi
}

exists() { apt-cache show "$1" 2>/dev/null | grep -q '^Package:'; }

# @msgpack: libmsgpack-dev up to Debian 12 and Ubuntu 22.04, libmsgpack-c-dev since.
# @clang: the system's version, and its run-time library, a package of its own or inside another.
resolve() {
    for word in "$@"; do
        case $word in
        @msgpack) exists libmsgpack-c-dev && echo libmsgpack-c-dev || echo libmsgpack-dev ;;
        @clang)
            version=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
            echo "clang-$version"
            exists "libclang-rt-$version-dev" && echo "libclang-rt-$version-dev" ||
                echo "libclang-common-$version-dev"
            ;;
        *) echo "$word" ;;
        esac
    done
}

install_packages() {
    words=$(missing)
    [ -n "$words" ] || return 0
    have apt-get || die "missing: $(echo $words); no apt-get here, install them by hand"
    as_root apt-get update -q
    packages=$(resolve $words)
    say "installing $(echo $packages)"
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends $packages
    words=$(missing)
    [ -z "$words" ] || die "still missing after the installation: $(echo $words)"
}

# ---- packages of Python

have_gpu() { [ -e /dev/nvidiactl ]; }

# NVRTC from a toolkit: then the wheel is not needed.
have_nvrtc() {
    ls /usr/local/cuda*/lib64/libnvrtc.so* >/dev/null 2>&1 ||
        ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so'
}

nvrtc='nvidia-cuda-nvrtc==13.0.*'
demo_packages="msgpack numpy pillow"
if have_gpu && ! have_nvrtc; then demo_packages="$demo_packages $nvrtc"; fi
test_packages="pytest pytest-timeout pytest-xdist mypy ml_dtypes $nvrtc torch==2.13.0 \
onnx onnxscript onnxruntime scikit-learn matplotlib pynvim nbclient ipykernel"

imports_demo() { have "$1" && "$1" -c 'import msgpack, numpy, PIL' 2>/dev/null; }

python_ready() {
    if [ "$level" = demo ] && [ ! -d .venv ] && imports_demo "$PYTHON"; then
        if ! have_gpu || have_nvrtc; then return 0; fi
    fi
    [ -x .venv/bin/python ] && stamped demo "$demo_packages" &&
        { [ "$level" = demo ] || stamped test "$test_packages"; }
}

# .venv/opd-NAME holds the list that was installed.
stamped() { [ "$(cat ".venv/opd-$1" 2>/dev/null)" = "$2" ]; }

pip_install() { # name, packages
    if stamped "$1" "$2"; then return 0; fi
    say "installing into .venv: $2"
    .venv/bin/python -m pip install -q --disable-pip-version-check $2
    echo "$2" >".venv/opd-$1"
}

install_python() {
    if python_ready; then return 0; fi
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        say "making the virtual environment .venv"
        rm -rf .venv
        "$PYTHON" -m venv .venv
    fi
    pip_install demo "$demo_packages"
    if [ "$level" = test ]; then pip_install test "$test_packages"; fi
}

case $level in
build | demo | test) ;;
*) die "usage: scripts/setup.sh build|demo|test" ;;
esac
install_packages
if [ "$level" != build ]; then install_python; fi
say "ready ($level)"
