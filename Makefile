# opd. GNU make; everything that is built goes under $(BUILD).
#
#   make            build/opd, build/opctl, build/libopd.so, build/libopd.a, build/libopd_torch.so, build/opd_native.so
#   make demo       installs what is missing, builds, shows it at work
#   make test       installs what is missing, builds, runs every test that needs no GPU: half an hour on two cores
#   make quick      builds, and runs what most mistakes are found by: a minute
#
# The other targets stand below in that order: build, test, style, ship.

BUILD = build
VERSION := $(shell sed -n 's/.*OPD_VERSION "\(.*\)".*/\1/p' server/base/version.h)

ifeq ($(origin CC),default)
CC = gcc
endif
OPT = -O2 -g
WARN = -Wall -Wextra -Wshadow -Wconversion -Werror
SANITIZE =
INCLUDE = -Iserver -Iclient
CFLAGS = -std=gnu11 $(OPT) $(WARN) $(SANITIZE) -D_GNU_SOURCE
# What is being made, in a word; the whole commands with V=1.
Q = $(if $(V),,@)
SAY = @$(if $(V),:,printf '  %-4s %s\n')

COMPILE = $(CC) $(CFLAGS) $(INCLUDE) -MMD -MP
LINK = $(CC) $(OPT) $(SANITIZE)

# The path of a library that the compiler would link, by the first of several names; empty if there is none.
find_lib = $(firstword $(filter /%,$(foreach f,$(1),$(shell $(CC) -print-file-name=$(f)))))

# Linked statically where the archive is there, so that one build runs on many systems.
LIBUV = $(or $(call find_lib,libuv_a.a libuv.a),-luv)
LIBMSGPACK = $(or $(call find_lib,libmsgpackc.a libmsgpack-c.a libmsgpackc.so libmsgpack-c.so),-lmsgpackc)
MSGPACK_PC = $(firstword $(foreach p,msgpack-c msgpack,$(shell pkg-config --exists $(p) && echo $(p))))
LIBS = $(LIBUV) $(LIBMSGPACK) -ldl -lpthread -lm

# A machine that only runs the tests may lack the headers, and use the build/ that came along.
HAVE_HEADERS = printf '\#include <%s.h>\n' uv msgpack cmocka | $(CC) -E - >/dev/null 2>&1

# The virtual environment that `make setup` makes, else the Python of the system.
PYTHON ?= $(or $(wildcard .venv/bin/python),python3)
FUZZ_SECONDS ?= 10

.DELETE_ON_ERROR:
.PHONY: all setup demo test quick some check-gpu endurance-gpu examples programs \
	unit conformance compile-all functional functional-pure ops torch torch-isolated reload faults soak soak-torch endurance chaos model asan asan-build tsan fuzz fuzz-daemon standin \
	bench bench-cpu bench-edits bench-operators \
	bench-reload bench-requests gates \
	lint format protocol stubs docs install uninstall dist wheel first-hour clean

# Python cannot load a sanitizer's library.
all: $(BUILD)/opd $(BUILD)/opctl $(BUILD)/libopd.a $(if $(SANITIZE),,$(BUILD)/libopd.so $(BUILD)/libopd_torch.so native)

# ---- build ---------------------------------------------------------------------------------------------------------

OBJ = $(BUILD)/obj
objects = $(patsubst %.c,$(OBJ)/%.o,$(wildcard $(1)))

# The rooms, from the roof down: each leans on those behind it alone (scripts/lint.sh).
rooms = upgrade request kernels device keeper memory wire trial compiler executor op base
$(foreach r,$(rooms),$(eval $(r) = $(call objects,server/$(r)/*.c)))
roof = $(filter-out %/main.o,$(call objects,server/*.c))
opctl = $(call objects,client/opctl/*.c client/c/pack.c server/base/suggest.c)

# libopd shares these leaves with the daemon.
client = $(patsubst %.c,$(OBJ)/pic/%.o, \
	$(filter-out client/c/example.c,$(wildcard client/c/*.c)) $(patsubst %,server/base/%.c,mpscan hash dtype))

# Leaves of the daemon for a client that runs exported plans in its own process: their layout, and the blocks of a
# kernel on the CPU.
in_process = $(patsubst %,$(OBJ)/pic/server/%.o, \
	base/exported base/version_page base/report base/dtype base/err base/mem \
	executor/cpu_block executor/cpu_fiber executor/cpu_race)
# opd.torch's library: the daemon's operators in torch's process.
torch_client = $(patsubst %.c,$(OBJ)/pic/%.o,$(wildcard client/torch/*.c))

$(OBJ)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(COMPILE) -c -o $@ $<

$(OBJ)/pic/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(SAY) CC "$< (libopd)"
	$(Q)$(COMPILE) -fPIC -fvisibility=hidden -c -o $@ $<

# It holds the text of these (.incbin), which -MMD does not see.
$(OBJ)/server/compiler/cpu_shim_text.o: server/executor/cpu_image.h $(wildcard server/compiler/cpu_*.h)
$(OBJ)/server/compiler/field.o: $(wildcard kernels_src/include/*.cuh)

# One archive for each room, so that a test links what it names and nothing else.
$(foreach r,$(rooms),$(eval $(OBJ)/lib$(r).a: $($(r))))
$(OBJ)/libroof.a: $(roof)
$(OBJ)/lib%.a:
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

archives = $(foreach r,roof $(rooms),$(OBJ)/lib$(r).a)

$(BUILD)/opd: $(OBJ)/server/main.o $(roof) $(foreach r,$(rooms),$($(r)))
	$(SAY) LINK $@
	$(Q)$(LINK) -o $@ $^ $(LIBS)

$(BUILD)/opctl: $(opctl) $(BUILD)/libopd.a
	$(SAY) LINK $@
	$(Q)$(LINK) -o $@ $^ $(LIBMSGPACK) -lpthread -lm

# msgpack-c inside stays inside: a program may have its own.
$(BUILD)/libopd.so: $(BUILD)/libopd.so.0
	$(Q)ln -sf libopd.so.0 $@

$(BUILD)/libopd.so.0: $(client)
	$(SAY) LINK $@
	$(Q)$(LINK) -shared -Wl,-soname,libopd.so.0 -Wl,--exclude-libs,ALL -Wl,-z,defs -o $@ $^ $(LIBMSGPACK)

# An error leaves through these functions as an exception of C++, which torch makes.
$(torch_client): CFLAGS += -fexceptions

$(BUILD)/libopd_torch.so: $(torch_client) $(in_process) $(patsubst %,$(OBJ)/pic/server/%.o, \
	executor/cuda_driver executor/cuda_blas base/cuda_library base/hash base/log base/python_sites)
	$(SAY) LINK $@
	$(Q)$(LINK) -shared -Wl,-soname,libopd_torch.so -Wl,-z,defs -o $@ $^ -ldl -lpthread

# The Python client's quick path, where Python's headers are; it does without, more slowly.
PYTHON_H = $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["include"])' 2>/dev/null)
.PHONY: native no-native
native: $(if $(wildcard $(PYTHON_H)/Python.h),$(BUILD)/opd_native.so,no-native)
no-native:
	@echo "  -- no Python.h of $(PYTHON): opd_native.so is not built, the Python client does without it"

native_sources = $(wildcard client/python/*.c)
$(BUILD)/opd_native.so: $(native_sources) $(wildcard client/python/*.h) client/c/lane_use.h server/base/lane.h server/base/word.h server/base/stream_copy.h Makefile
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(COMPILE) -isystem $(PYTHON_H) -fPIC -fvisibility=hidden -shared -o $@ $(native_sources) -lpthread

# One object whose inner names are local, so that they cannot clash with those of a program.
$(BUILD)/libopd.a: $(client)
	$(SAY) LINK $@
	@rm -f $@
	$(Q)$(LD) -r -o $(OBJ)/libopd.o $^
	$(Q)objcopy --localize-hidden $(OBJ)/libopd.o
	$(Q)$(AR) rcs $@ $(OBJ)/libopd.o

# ---- tests ---------------------------------------------------------------------------------------------------------

unit_programs = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c))
fuzz_programs = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
other_programs = $(patsubst tests/%.c,$(BUILD)/tests/%, \
	$(wildcard tests/conformance/conformance.c tests/compile_all.c))
bench_programs = $(addprefix $(BUILD)/tests/bench/,count own_exe.so requests)
programs: $(unit_programs) $(other_programs) $(bench_programs) $(BUILD)/tests/example $(BUILD)/tests/exported_run \
	$(BUILD)/tests/libcuda.so.1

# cmocka's macros convert freely. A copy of the library goes with the tests to where there is none.
TEST_FLAGS = -Wno-conversion -Itests
$(OBJ)/tests/%.o: CFLAGS += $(TEST_FLAGS)
CMOCKA = $(BUILD)/lib/libcmocka.so.0
$(CMOCKA):
	@mkdir -p $(@D)
	@cp -L $(call find_lib,libcmocka.so) $@

$(unit_programs) $(other_programs): $(BUILD)/tests/%: $(OBJ)/tests/%.o $(archives) $(BUILD)/libopd.a $(CMOCKA)
	@mkdir -p $(@D)
	$(SAY) TEST $@
	$(Q)$(LINK) -o $@ $< -Wl,--start-group $(archives) -Wl,--end-group \
		$(BUILD)/libopd.a $(CMOCKA) -Wl,-rpath,'$$ORIGIN/../../lib' $(LIBS)

$(BUILD)/tests/example: client/c/example.c $(BUILD)/libopd.a Makefile
	@mkdir -p $(@D)
	$(SAY) TEST $@
	$(Q)$(COMPILE) -Iclient/c -o $@ $< $(BUILD)/libopd.a $(LIBMSGPACK)

# What counts and times requests; without a sanitizer, whatever it is beside.
$(BUILD)/tests/bench/count: tests/bench/count.c Makefile
	@mkdir -p $(@D)
	$(SAY) TEST $@
	$(Q)$(COMPILE) -o $@ $< -lpthread

$(BUILD)/tests/bench/own_exe.so: tests/bench/own_exe.c Makefile
	@mkdir -p $(@D)
	$(SAY) TEST $@
	$(Q)$(COMPILE) -shared -fPIC -o $@ $< -ldl

$(BUILD)/tests/bench/requests: tests/bench/requests.c $(BUILD)/libopd.a Makefile
	@mkdir -p $(@D)
	$(SAY) TEST $@
	$(Q)$(COMPILE) -o $@ $< $(BUILD)/libopd.a $(LIBMSGPACK) -ldl -lm

$(BUILD)/tests/exported_run: tests/exported_run.c $(in_process) Makefile
	@mkdir -p $(@D)
	$(SAY) TEST $@
	$(Q)$(COMPILE) -o $@ $< $(in_process) -ldl -lm

# A stand-in for NVIDIA's driver (tests/driver/standin.h). Rounding modes are set while it runs.
standin = $(patsubst %.c,$(OBJ)/pic/%.o,$(wildcard tests/driver/*.c))
$(standin): CFLAGS += -frounding-math -ffp-contract=off
$(standin): $(wildcard tests/driver/*.def)
$(BUILD)/tests/libcuda.so.1: $(standin)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(LINK) -shared -Wl,-soname,libcuda.so.1 $(if $(SANITIZE),,-Xlinker -z -Xlinker defs) -o $@ $^ -lpthread -lm
	$(Q)ln -sf libcuda.so.1 $(@D)/libnvidia-ml.so.1

$(fuzz_programs): $(BUILD)/tests/%: tests/%.c $(archives) Makefile
	@mkdir -p $(@D)
	$(SAY) FUZZ $@
	$(Q)$(COMPILE) $(TEST_FLAGS) -fsanitize=fuzzer -o $@ $< -Wl,--start-group $(archives) -Wl,--end-group $(LIBS)

# Where the tests in Python find what they test.
TEST_ENV = OPD_BIN=$(abspath $(BUILD)/opd) OPD_LIB=$(abspath $(BUILD)/libopd.so) \
	PYTHONPATH=$(abspath client/python)
# Where the daemon and compile_all find the wheel with NVRTC.
export VIRTUAL_ENV := $(if $(wildcard .venv),$(abspath .venv),$(VIRTUAL_ENV))
# A process for each core and two more, four at most, where pytest-xdist is there, for tests wait, too; but one for
# those that share a GPU. Who has done his tests takes over others', so that no long file is left to be waited for.
DEVICE ?= cpu
JOBS ?= $(if $(filter cpu,$(DEVICE)),$(shell n=$$(nproc); echo $$((n < 3 ? n + 2 : 4))),1)
PARALLEL = $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && echo '-n $(JOBS) --dist worksteal')
# Each of pytest's processes rewrites every test's assertions, for half of its start, unless they are kept.
PYTEST = $(TEST_ENV) PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest -q -p no:cacheprovider -o timeout=900 -W ignore::pytest.PytestConfigWarning \
	$(if $(filter-out 1,$(JOBS)),$(PARALLEL))
# Of `test` the steps, and of `check-gpu` the jobs whose names begin so: make check-gpu STEPS="torch functional/test_v".
STEPS ?=

test:
	@scripts/setup.sh test
	@scripts/test.sh cpu $(STEPS)

quick:
	@scripts/setup.sh test
	@scripts/test.sh quick

# Some tests: make some TESTS="tests/functional/test_views.py -k empty"
TESTS ?= tests/functional
some: $(call built,all)
	OPD_TEST_DEVICE=$(DEVICE) $(PYTEST) $(TESTS)

# Tests on a GPU that is none: make standin TESTS="tests/faults/test_checked.py -k edge"
standin: $(call built,all $(BUILD)/tests/libcuda.so.1)
	OPD_TEST_DEVICE=cuda:0 LD_LIBRARY_PATH=$(abspath $(BUILD)/tests) $(PYTEST) $(TESTS)

# On a machine with a GPU, perhaps without a network and without the libraries' headers.
check-gpu:
	@if $(HAVE_HEADERS); then $(MAKE) --no-print-directory -j$$(nproc) all programs; \
	elif [ -x build/opd ]; then echo "check-gpu: no uv.h, msgpack.h or cmocka.h; using the build/ that came along"; \
	else echo "check-gpu: needs uv.h, msgpack.h and cmocka.h, or a build/ made elsewhere" >&2; exit 1; fi
	@[ -e build/libopd.so ] || ln -s libopd.so.0 build/libopd.so # not all that copies a build/ takes links along
	@$(TEST_ENV) $(PYTHON) scripts/check_gpu.py $(STEPS)

# Hours' worth of edits, faults and figures, in twenty minutes.
endurance-gpu:
	@scripts/test.sh endurance-gpu $(STEPS)

demo:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@$(MAKE) --no-print-directory run-demo

.PHONY: run-demo
run-demo:
	@$(TEST_ENV) $(PYTHON) examples/demo.py

setup:
	@scripts/setup.sh test

# PREBUILT=1: take what is there, build nothing.
built = $(if $(PREBUILT),,$(1))

unit: $(call built,$(unit_programs))
	@printf '%s\n' $(unit_programs) | xargs -P $$(nproc) -I{} sh -c \
		'{} >{}.log 2>&1 || { cat {}.log; exit 255; }; echo "{}: $$(tail -n 1 {}.log)"'

conformance: $(call built,$(BUILD)/tests/conformance/conformance)
	$(BUILD)/tests/conformance/conformance $(DEVICE)

# And what no operator of ours does: structs, and tensors of any strides. PTXAS=ptxas: their checked builds.
compile-all: $(call built,$(BUILD)/tests/compile_all)
	$(BUILD)/tests/compile_all $(if $(ARCHS),--arch $(ARCHS)) $(if $(PTXAS),--checked $(PTXAS)) kernels_src/*.cu \
		$(addprefix tests/torch/kernels/,blend.cu read_strided.cu)

functional ops reload faults torch: $(call built,all)
	OPD_TEST_DEVICE=$(DEVICE) $(PYTEST) tests/$@

# What the client has in C, without.
functional-pure: $(call built,all)
	OPD_TEST_DEVICE=$(DEVICE) OPD_PURE=1 $(PYTEST) tests/functional/test_client_prepared.py tests/functional/test_client_replays.py

# What torch runs in its own process otherwise.
torch-isolated: $(call built,all)
	OPD_ISOLATED=1 OPD_TEST_DEVICE=$(DEVICE) $(PYTEST) tests/torch

# Each with a daemon of its own, on the GPU where there is one.
examples: $(call built,all)
	@train=$$($(PYTHON) -c 'import matplotlib, sklearn; print("train")' 2>/dev/null || \
		echo "-- no scikit-learn or matplotlib here, for examples/train.py" >&2); \
	for e in depthwise lltm gelu upsample pcl resident $$train; do \
		echo "-- examples/$$e.py"; $(TEST_ENV) $(PYTHON) examples/$$e.py || exit 1; done
	@echo "-- examples/ddp.py"; folder=$$(mktemp -d) && trap 'rm -rf $$folder' EXIT; \
		OMP_NUM_THREADS=1 OPD_SOCKET=$$folder/opd.sock $(TEST_ENV) \
		timeout -k 5 120 $(PYTHON) -m torch.distributed.run --nproc-per-node 2 examples/ddp.py; status=$$?; \
		$(BUILD)/opctl --socket $$folder/opd.sock stop; exit $$status

# Edits under load, for minutes, and under training loops in PyTorch; `reload` and `torch` have short ones.
SOAK_EDITS ?= 1000
soak: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/reload/soak.py --edits $(SOAK_EDITS) --device $(DEVICE)

soak-torch: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/torch/training_soak.py --edits $(SOAK_EDITS) --device $(DEVICE)

# Faults and kills beside clients that verify every bit, for minutes; `faults` has short ones. A chaos run prints the
# SEED with which it can be repeated.
GIB ?= 8
FAULTS ?= 100
HANGS ?= 10
CLIENTS ?= 8
SECONDS ?= 60
SEED ?=
endurance: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/faults/endurance.py --device $(DEVICE) \
		--gib $(GIB) --faults $(FAULTS) --hangs $(HANGS) --workers $(CLIENTS)

chaos: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/faults/chaos.py --device $(DEVICE) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Requests at random against a model in NumPy, with kills, upgrades and edits; a run prints the SEED that repeats it.
model: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/model/run.py --device $(DEVICE) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# DEVICE names where the edits are timed; operators are timed on the best device there is.
bench: bench-operators bench-reload

# What requests cost, written anew: tests/functional/test_gates.py holds later changes against it.
gates: $(call built,all programs)
	$(TEST_ENV) PYTHONPATH=client/python:tests:tests/functional $(PYTHON) tests/functional/test_gates.py

bench-operators: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/bench/bench.py $(if $(QUICK),--quick,--docs docs/benchmarks.md --svg docs/roofline.svg)
	$(if $(QUICK),,$(TEST_ENV) $(PYTHON) tests/bench/bench_torch.py)

bench-cpu: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/bench/bench_cpu.py

bench-reload: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/bench/bench_reload.py --device $(DEVICE)

bench-edits: $(call built,all)
	$(TEST_ENV) $(PYTHON) tests/bench/bench_edits.py

bench-requests: $(call built,all programs)
	$(TEST_ENV) $(PYTHON) tests/bench/bench_requests.py --device $(DEVICE)

# The same tests, on a program built with the sanitizers.
export ASAN_OPTIONS ?= detect_leaks=1:quarantine_size_mb=16
export UBSAN_OPTIONS ?= print_stacktrace=1
export TSAN_OPTIONS ?= halt_on_error=1
# At fixed addresses, the sanitizer's library linked in: a process starts in three quarters of the time.
asan_flags = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -fno-pie -no-pie -static-libasan -rdynamic
tsan_flags = -fsanitize=thread
# Optimized and described as far as a report needs: built in half the time. It is the plain build that warns.
sanitized = @$(MAKE) --no-print-directory BUILD=build/$(1) OPT='-O1 -g1' WARN= SANITIZE='$($(1)_flags)'

asan tsan:
	$(call sanitized,$@) -j$$(nproc) all programs
	$(call sanitized,$@) unit conformance functional

asan-build:
	$(call sanitized,asan) -j$$(nproc) all programs

# What the compiler makes of kernels is tested by the plain one.
asan-conformance asan-functional: export OPD_CXX = $(abspath tests/quick-c++.sh)
asan-%:
	$(call sanitized,asan) $*

# Each fuzzer for FUZZ_SECONDS, from its corpus; what it finds stays under build/fuzz/found/.
CLANG = $(firstword $(shell command -v clang) \
	$(shell ls /usr/bin/clang-[0-9]* 2>/dev/null | grep -E 'clang-[0-9]+$$' | sort -t- -k2 -n -r))

fuzz:
	@test -n "$(CLANG)" || { echo "fuzz: needs clang: scripts/setup.sh test" >&2; exit 1; }
	@$(MAKE) --no-print-directory BUILD=build/fuzz CC=$(CLANG) WARN='-Wall -Wextra' OPT='-O1 -g1' \
		SANITIZE='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all' \
		-j$$(nproc) run-fuzz

.PHONY: run-fuzz
run-fuzz: $(fuzz_programs)
	@printf '%s\n' $(notdir $(fuzz_programs)) | xargs -P $$(nproc) -I{} scripts/fuzz.sh $(BUILD) {} $(FUZZ_SECONDS)

# The whole daemon, with the sanitizers, on the CPU device.
fuzz-daemon:
	$(call sanitized,asan) -j$$(nproc) build/asan/opd
	OPD_BIN=$(abspath build/asan/opd) PYTHONPATH=$(abspath client/python) PYTHONDONTWRITEBYTECODE=1 \
		$(PYTHON) tests/fuzz/fuzz_daemon.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# ---- style ---------------------------------------------------------------------------------------------------------

lint:
	@PYTHON=$(PYTHON) scripts/lint.sh

CLANG_FORMAT = $(firstword $(shell command -v clang-format) \
	$(shell ls /usr/bin/clang-format-[0-9]* 2>/dev/null | sort -t- -k3 -n -r))
format:
	$(CLANG_FORMAT) -i $(shell find server client tests -name '*.[ch]')

protocol:
	$(PYTHON) protocol/gen_protocol.py

# The operators of kernels_src as types, in the package; tests/functional/test_stubs.py holds them current.
stubs: $(call built,all)
	export $(TEST_ENV) OPD_KERNELS= XDG_CONFIG_HOME=/nonexistent OPD_SOCKET=$$(mktemp -d)/opd.sock && \
	$(PYTHON) -m opd.stubs --shipped > $(BUILD)/opd.pyi && \
	$(PYTHON) -m opd.stubs --shipped --torch > $(BUILD)/torch.pyi && $(BUILD)/opctl stop
	mv $(BUILD)/opd.pyi client/python/opd/_shipped.pyi
	mv $(BUILD)/torch.pyi client/python/opd/torch/_shipped.pyi

# The reference of the Python packages, by pdoc, which only this needs: build/api/index.html.
docs:
	$(PYTHON) -m pip install -q --disable-pip-version-check --upgrade --target $(BUILD)/pdoc pdoc
	PYTHONPATH=client/python:$(BUILD)/pdoc $(PYTHON) -W ignore scripts/api.py $(BUILD)/api

# ---- ship ----------------------------------------------------------------------------------------------------------

PREFIX ?= /usr/local
DESTDIR ?=
# One word, and PREFIX from / on: what is installed names it.
ODD = $(filter-out /%,$(PREFIX))$(word 2,$(DESTDIR)$(PREFIX))
ROOT = $(if $(ODD),$(error DESTDIR=$(DESTDIR) PREFIX=$(PREFIX): expected no spaces, and / before PREFIX))$(DESTDIR)$(PREFIX)
DIST = opd-$(VERSION)-linux-$(shell uname -m)

DOCS = README.md HACKING.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples protocol/README.md \
	client/c/opd.h client/c/example.c server/systemd

install: all
	install -d $(ROOT)/bin $(ROOT)/lib/pkgconfig $(ROOT)/lib/systemd/user $(ROOT)/include $(ROOT)/share/doc/opd \
		$(ROOT)/share/opd/python/opd/torch
	install $(BUILD)/opd $(BUILD)/opctl $(ROOT)/bin
	install $(BUILD)/libopd.so.0 $(ROOT)/lib
	ln -sf libopd.so.0 $(ROOT)/lib/libopd.so
	install $(BUILD)/libopd_torch.so $(ROOT)/lib
	[ ! -f $(BUILD)/opd_native.so ] || install $(BUILD)/opd_native.so $(ROOT)/lib
	install -m 644 $(BUILD)/libopd.a $(ROOT)/lib
	install -m 644 client/c/opd.h $(ROOT)/include
	cp -r --no-preserve=ownership kernels_src $(ROOT)/share/opd
	install -m 644 client/python/pyproject.toml client/python/setup.py client/python/LICENSE $(ROOT)/share/opd/python
	install -m 644 client/python/opd/*.py* client/python/opd/py.typed $(ROOT)/share/opd/python/opd
	install -m 644 client/python/opd/torch/*.py* $(ROOT)/share/opd/python/opd/torch
	install -m 644 server/systemd/opd.socket $(ROOT)/lib/systemd/user
	sed 's|@PREFIX@|$(PREFIX)|' server/systemd/opd.service.in > $(ROOT)/lib/systemd/user/opd.service
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@MSGPACK@|$(MSGPACK_PC)|' \
		client/c/opd.pc.in > $(ROOT)/lib/pkgconfig/opd.pc
	cp -r --parents --no-preserve=ownership $(DOCS) $(ROOT)/share/doc/opd
	ln -sfn ../../opd/kernels_src $(ROOT)/share/doc/opd/kernels_src
	$(PYTHON) scripts/manual.py $(BUILD) $(ROOT)/share

# What an install of this version would write, and the folders of its own.
uninstall:
	rm -rf $(BUILD)/uninstall
	$(MAKE) --no-print-directory install DESTDIR=$(BUILD)/uninstall
	(cd $(BUILD)/uninstall && find . ! -type d -print0) | (cd "$(DESTDIR)/" && xargs -0 rm -f)
	(cd $(BUILD)/uninstall && find . -depth -type d -path '*/opd*' -print0) | \
		(cd "$(DESTDIR)/" && xargs -0 rmdir --ignore-fail-on-non-empty 2>/dev/null) || true
	rm -rf $(BUILD)/uninstall

# The programs find their files beside themselves, wherever it is unpacked; so does opd.pc.
dist: all
	rm -rf $(BUILD)/dist/$(DIST)
	$(MAKE) --no-print-directory install PREFIX= DESTDIR=$(abspath $(BUILD)/dist/$(DIST))
	mv $(BUILD)/dist/$(DIST)/share/doc/opd/* $(BUILD)/dist/$(DIST)
	rmdir -p --ignore-fail-on-non-empty $(BUILD)/dist/$(DIST)/share/doc/opd
	ln -sfn share/opd/kernels_src $(BUILD)/dist/$(DIST)/kernels_src
	sed -i 's|^prefix=.*|prefix=$${pcfiledir}/../..|' $(BUILD)/dist/$(DIST)/lib/pkgconfig/opd.pc
	strip --strip-debug $(BUILD)/dist/$(DIST)/bin/* $(BUILD)/dist/$(DIST)/lib/*.so.0 $(BUILD)/dist/$(DIST)/lib/*_*.so $(BUILD)/dist/$(DIST)/lib/*.a
	mkdir -p dist
	tar -C $(BUILD)/dist -czf dist/$(DIST).tar.gz --owner=0 --group=0 $(DIST)
	@ls -l dist/$(DIST).tar.gz

# One file for pip: the programs, the operators and the clients, for any Python of this kind of machine.
wheel: dist
	$(PYTHON) -m pip wheel -q --no-deps --wheel-dir dist $(BUILD)/dist/$(DIST)/share/opd/python
	@ls -l dist/opd-$(VERSION)-*.whl

first-hour: all
	scripts/first-hour.sh

clean:
	rm -rf build dist

-include $(shell find $(BUILD)/obj $(BUILD)/tests -name '*.d' 2>/dev/null)
