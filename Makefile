# Trainyard. `make help` lists the targets.
#
# A room is a directory; all .c files in it make one library, build/lib<room>.a, except main.c, which
# makes its program. Tests name the room that they test: tests/unit/<room>_<what>.c.

BUILD      ?= build
PREFIX     ?= /usr/local
DESTDIR    ?=
BINDIR     ?= $(PREFIX)/bin
LIBEXECDIR ?= $(PREFIX)/libexec/trainyard
DATADIR    ?= $(PREFIX)/share/trainyard
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
VERSION    := 0.1.0

CC         ?= cc
PKG_CONFIG ?= pkg-config
OPT        ?= -O2
SAN        ?=
WARN       := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
              -Wmissing-prototypes -Wold-style-definition -Wvla -Werror
CPPFLAGS_  := -D_GNU_SOURCE -I. -DTRAINYARD_VERSION='"$(VERSION)"' $(CPPFLAGS)
CFLAGS_    := -std=gnu11 -g $(OPT) $(WARN) $(SAN) $(CFLAGS)
LDFLAGS_   := $(SAN) $(LDFLAGS)

# V=1 shows whole command lines.
Q          := $(if $(V),,@)
say         = $(if $(V),,@printf "  %-3s %s\n" $(1) $(2))

pc = $(shell $(PKG_CONFIG) --libs $(1) 2>/dev/null)
JANSSON_LIBS   = $(call pc,jansson)
SQLITE_LIBS    = $(call pc,sqlite3)
MHD_LIBS       = $(call pc,libmicrohttpd)
SYSTEMD_LIBS   = $(call pc,libsystemd)
CURL_LIBS      = $(call pc,libcurl)
SODIUM_LIBS    = $(call pc,libsodium)
INIH_LIBS      = $(call pc,inih)
TRAINER_LIBS   = -lcsv -lzip -lz -lxxhash $(SODIUM_LIBS) -lm

ROOMS := base spec storage api daemon daemon/coordinator daemon/agent daemon/shim trainer cli
lib    = $(BUILD)/lib$(subst /,-,$(1)).a
srcs   = $(filter-out $(1)/main.c,$(wildcard $(1)/*.c))
objs   = $(patsubst %.c,$(BUILD)/%.o,$(1))

# ---- CUDA: trainer/cuda, where there are nvcc 12 or later, cuBLAS and NCCL (CUDA=0: not even then) ----
# CUDA_HOME and NCCL_HOME: where they are. CUDA=1 insists: what is missing is an error.
NVCC       ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_HOME  ?= $(patsubst %/bin/nvcc,%,$(NVCC))
NCCL_HOME  ?= $(CUDA_HOME)
CUDA_PLACES = $(NCCL_HOME) $(CUDA_HOME) /usr /usr/local
cuda_has    = $(firstword $(wildcard $(foreach d,$(CUDA_PLACES),$(d)/include/$(1) $(d)/include/*-linux-gnu/$(1))))
NVCC_RELEASE = $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1\2/p')
CUDA_LACKS  = $(if $(NVCC),$(if $(call cuda_has,cublasLt.h),,cublasLt.h) $(if $(call cuda_has,nccl.h),,nccl.h) \
              $(shell [ "$(NVCC_RELEASE)" -ge 120 ] 2>/dev/null || echo nvcc-12-or-later),nvcc)
ifeq ($(CUDA),)
CUDA_LEFT_OUT := $(strip $(CUDA_LACKS))
CUDA          := $(if $(CUDA_LEFT_OUT),0,1)
else ifneq ($(CUDA),0)
ifneq ($(strip $(CUDA_LACKS)),)
$(error CUDA=$(CUDA) asks for the trainer for GPUs, and this machine lacks: $(strip $(CUDA_LACKS)) (CUDA_HOME=$(CUDA_HOME), NCCL_HOME=$(NCCL_HOME)); CUDA=0 goes without)
endif
endif
CUDA_ARCHS ?= 80 90 $(if $(filter 120 121 122 123 124 125 126 127,$(NVCC_RELEASE)),,100)
CUDA_SRCS  := $(wildcard trainer/cuda/*.cu)
CUDA_WARN  := -Wall,-Wextra,-Wno-missing-field-initializers,-Werror
# Machine code for each of CUDA_ARCHS, and PTX of the last for what comes after it. No contraction, so
# that a GPU rounds an element's mathematics as the CPU does.
NVCC_FLAGS  = -std=c++20 -O3 -lineinfo -fmad=false -Werror all-warnings -Xcompiler $(CUDA_WARN) \
              $(addprefix -I,$(wildcard $(NCCL_HOME)/include)) \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              $(foreach a,$(lastword $(CUDA_ARCHS)),-gencode arch=compute_$(a),code=compute_$(a))

$(BUILD)/trainer/cuda/%.o: trainer/cuda/%.cu
	@mkdir -p $(@D)
	$(call say,NV,$<)
	$(Q)$(NVCC) $(CPPFLAGS_) $(NVCC_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/libtrainer-cuda.a: $(CUDA_SRCS:%.cu=$(BUILD)/%.o)
	@rm -f $@
	@ar rcs $@ $^

# The same sources by the host's compiler over tests/emu, a CUDA that runs on the CPU: for tests alone.
CXX        ?= c++
EMU_FLAGS   = -std=c++20 -g $(OPT) -ffp-contract=off -Itests/emu -Wall -Wextra \
              -Wno-missing-field-initializers -Wno-unused-parameter -Wno-unknown-pragmas -Werror $(SAN)
EMU_SRCS   := $(wildcard tests/emu/*.cc)
EMU_LIBS   := $(BUILD)/libtrainer-cuda-emulated.a $(BUILD)/libemu.a
$(BUILD)/emu/%.o: %.cu
	@mkdir -p $(@D)
	$(call say,C++,$<)
	$(Q)$(CXX) $(CPPFLAGS_) $(EMU_FLAGS) -MMD -MP -x c++ -c $< -o $@
$(BUILD)/emu/%.o: %.cc
	@mkdir -p $(@D)
	$(call say,C++,$<)
	$(Q)$(CXX) $(CPPFLAGS_) $(EMU_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/libtrainer-cuda-emulated.a: $(CUDA_SRCS:%.cu=$(BUILD)/emu/%.o)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/libemu.a: $(EMU_SRCS:%.cc=$(BUILD)/emu/%.o)
	@rm -f $@
	@ar rcs $@ $^

.DEFAULT_GOAL := all
PROGRAMS := trainyardd trainyard-agent trainyard-shim trainyard-trainer trainyard
BINS     := $(PROGRAMS:%=$(BUILD)/%)
CUDA_PROGRAM := $(if $(CUDA_SRCS),$(BUILD)/trainyard-trainer-cuda)

.PHONY: all demo test unit e2e bench san fuzz tidy format format-check layers deps install clean help \
        deps-check deps-test build-tests units check-gpu gpu-kit cuda-tests fuzzers FORCE

all: deps-check $(BINS) $(if $(filter 1,$(CUDA)),$(CUDA_PROGRAM))
	@$(if $(CUDA_LEFT_OUT),echo "$(CUDA_LEFT_OUT_WORDS)",:)
CUDA_LEFT_OUT_WORDS = trainyard-trainer-cuda (training on GPUs) is left out: this machine lacks $(CUDA_LEFT_OUT); CUDA_HOME and NCCL_HOME may say where they are.

help:
	@sed -n 's/^## //p' Makefile

## make demo          the main job: three training jobs through a real coordinator and agent
## make test          everything CI runs: checks, unit tests, end-to-end and fault tests
## make unit e2e      those tests alone; make e2e T=cancel runs the files whose names contain it
## make bench         speed, as medians and as ratios against peers in the same run
## make san           unit and end-to-end tests under ASan and UBSan
## make fuzz          the parsers under libFuzzer, FUZZ_SECONDS each
## make layers tidy format format-check   the house rules
## make deps          installs what is missing with apt
## make install DESTDIR= PREFIX=

# ---- rooms ----
define room
$(call lib,$(1)): $(call objs,$(call srcs,$(1)))
	@rm -f $$@
	@ar rcs $$@ $$^
endef
$(foreach r,$(ROOMS),$(eval $(call room,$(r))))

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_) $(CFLAGS_) $(CFLAGS_$(firstword $(subst /, ,$<))) -MMD -MP -c $< -o $@

# The trainer's loops want vectors; contraction stays off, so that every build rounds alike.
CFLAGS_daemon  := -DTRAINYARD_LIBEXECDIR='"$(LIBEXECDIR)"'
CFLAGS_trainer := -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# What was compiled in for another prefix is compiled again: `make && make install PREFIX=/usr`.
$(BUILD)/daemon/agent/options.o: $(BUILD)/libexecdir
$(BUILD)/libexecdir: FORCE
	@mkdir -p $(@D)
	@echo "$(LIBEXECDIR)" | cmp -s - $@ || echo "$(LIBEXECDIR)" >$@
FORCE:

# The compiler does not tell make of what .incbin takes in.
$(BUILD)/api/openapi.o: api/openapi.json

# ---- programs ----
$(BUILD)/trainyardd: $(BUILD)/daemon/coordinator/main.o \
    $(call lib,daemon/coordinator) $(call lib,daemon) $(call lib,api) $(call lib,storage) $(call lib,spec) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(MHD_LIBS) $(SQLITE_LIBS) $(SYSTEMD_LIBS) $(SODIUM_LIBS) $(INIH_LIBS) $(JANSSON_LIBS) -lm
$(BUILD)/trainyard-agent: $(BUILD)/daemon/agent/main.o \
    $(call lib,daemon/agent) $(call lib,daemon) $(call lib,spec) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(CURL_LIBS) $(SYSTEMD_LIBS) $(INIH_LIBS) $(JANSSON_LIBS) -lm
$(BUILD)/trainyard-shim: $(BUILD)/daemon/shim/main.o \
    $(call lib,daemon/shim) $(call lib,daemon) $(call lib,spec) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(SYSTEMD_LIBS) $(JANSSON_LIBS) -lm
$(BUILD)/trainyard-trainer: $(BUILD)/trainer/main.o $(call lib,trainer) $(call lib,spec) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(TRAINER_LIBS) $(JANSSON_LIBS)
CUDA_LIB_DIRS = $(wildcard $(foreach d,$(sort $(CUDA_HOME) $(NCCL_HOME)),$(d)/lib64 $(if $(filter /usr,$(d)),,$(d)/lib)))
CUDA_LIBS = $(foreach d,$(CUDA_LIB_DIRS),-L$(d) -Wl,-rpath,$(d)) -lcublasLt -lnccl -lcudart
$(BUILD)/trainyard-trainer-cuda: $(BUILD)/trainer/main.o $(BUILD)/libtrainer-cuda.a $(call lib,trainer) $(call lib,spec) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(CUDA_BACKEND) -o $@ $^ $(CUDA_LIBS) $(TRAINER_LIBS) $(JANSSON_LIBS)
$(BUILD)/emu/trainyard-trainer-cuda: $(BUILD)/trainer/main.o $(EMU_LIBS) $(call lib,trainer) $(call lib,spec) $(call lib,base)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(CUDA_BACKEND) -o $@ $^ $(EMU_LINK) $(TRAINER_LIBS) $(JANSSON_LIBS)
$(BUILD)/emu/tests/gpu/run_job: $(BUILD)/tests/gpu/run_job.o $(EMU_LIBS) $(call lib,trainer) $(call lib,spec) $(call lib,base)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(CUDA_BACKEND) -o $@ $^ $(EMU_LINK) $(TRAINER_LIBS) $(JANSSON_LIBS)
EMU_LINK = -lopenblas -lpthread
# Of the two backends that the libraries have, the GPU's.
CUDA_BACKEND = -Wl,-u,backend
$(BUILD)/trainyard: $(BUILD)/cli/main.o $(call lib,cli) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(CURL_LIBS) $(JANSSON_LIBS) -lm

# ---- unit tests: tests/unit/<room>_<what>.c links its room and those below ----
UNIT_SRCS := $(filter-out tests/unit/fake_service.c,$(wildcard tests/unit/*.c))
UNIT_BINS := $(UNIT_SRCS:tests/unit/%.c=$(BUILD)/tests/unit/%)
BELOW     := $(call lib,spec) $(call lib,base)
unit_libs_base        := $(call lib,base)
unit_libs_spec        := $(BELOW)
unit_libs_storage     := $(call lib,storage) $(BELOW)
unit_libs_api         := $(BUILD)/tests/unit/fake_service.o $(call lib,api) $(BELOW)
unit_libs_trainer     := $(call lib,trainer) $(BELOW)
unit_libs_cuda        := $(EMU_LIBS) $(call lib,trainer) $(BELOW)
unit_libs_emu         := $(BUILD)/libemu.a $(BELOW)
unit_libs_daemon      := $(call lib,daemon) $(BELOW)
unit_libs_coordinator := $(call lib,daemon/coordinator) $(call lib,daemon) $(call lib,api) $(call lib,storage) $(BELOW)
unit_libs_agent       := $(call lib,daemon/agent) $(call lib,daemon) $(BELOW)
unit_libs_shim        := $(call lib,daemon/shim) $(call lib,daemon) $(BELOW)
unit_libs_cli         := $(call lib,cli) $(call lib,base)
ALL_LIBS  = -lcmocka $(MHD_LIBS) $(SQLITE_LIBS) $(SYSTEMD_LIBS) $(CURL_LIBS) $(SODIUM_LIBS) $(INIH_LIBS) $(JANSSON_LIBS) $(TRAINER_LIBS)

# What stands on the emulated CUDA: tests of cuda and emu (in C++ where they are .cc).
UNIT_CXX_SRCS := $(wildcard tests/unit/*.cc)
UNIT_BINS     += $(UNIT_CXX_SRCS:tests/unit/%.cc=$(BUILD)/tests/unit/%)
$(BUILD)/tests/unit/%.o: tests/unit/%.cc
	@mkdir -p $(@D)
	$(call say,C++,$<)
	$(Q)$(CXX) $(CPPFLAGS_) $(EMU_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/tests/unit/cuda_%: $(BUILD)/tests/unit/cuda_%.o $(unit_libs_cuda)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(CUDA_BACKEND) -o $@ $^ $(EMU_LINK) $(ALL_LIBS)
$(BUILD)/tests/unit/emu_%: $(BUILD)/tests/unit/emu_%.o $(unit_libs_emu)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) -o $@ $^ $(EMU_LINK) $(ALL_LIBS)

.SECONDEXPANSION:
$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $$(unit_libs_$$(firstword $$(subst _, ,$$*)))
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(ALL_LIBS)

# ---- what runs ----
deps:
	@scripts/deps.sh build test

deps-check:
	@scripts/deps.sh build

deps-test:
	@scripts/deps.sh build test

units:
	@echo $(notdir $(UNIT_BINS))

build-tests: $$(UNIT_BINS) $$(TEST_TOOLS) $$(BUILD)/trainyard-trainer $$(BUILD)/emu/trainyard-trainer-cuda $$(BUILD)/emu/tests/gpu/run_job $$(FAKE_NVML)

## make all           the programs, into build/; that for GPUs too where there is an nvcc
# It shows two CPU devices: nobody waits for nvcc, and no GPU is taken.
demo: deps-check $(BINS)
	@BUILD=$(BUILD) scripts/demo.sh

test: deps-test
	@scripts/test.sh

unit: deps-test
	@$(MAKE) --no-print-directory all build-tests
	@BUILD=$(BUILD) scripts/test.sh unit $(T)

e2e: deps-test
	@$(MAKE) --no-print-directory all build-tests
	@BUILD=$(BUILD) scripts/test.sh e2e $(T)

bench: deps-test
	@$(MAKE) --no-print-directory all build-tests
	@BUILD=$(BUILD) tests/bench/run.sh $(T)

# A build of its own, so that the plain one stays.
SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# In the environment, for tests call make too. Warnings that depend on the optimiser are off.
SAN_ENV   := BUILD=build-san OPT=-O1 SAN="$(SAN_FLAGS)" CPPFLAGS=-DTRAINYARD_SANITIZED CFLAGS=-Wno-format-truncation
san: deps-test
	@$(SAN_ENV) $(MAKE) --no-print-directory all build-tests
	@$(SAN_ENV) TRAINYARD_SLOW=4 scripts/test.sh unit e2e

FUZZ_SECONDS ?= 60
fuzz: deps-test
	@scripts/fuzz.sh $(FUZZ_SECONDS) $(T)

SOURCES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cc' 2>/dev/null)
format:
	clang-format -i $(SOURCES)
format-check:
	@clang-format --dry-run --Werror $(SOURCES) && echo "format: as .clang-format has it"

layers:
	@scripts/layers.sh

tidy:
	@scripts/tidy.sh $(T)

install: all
	@DESTDIR="$(DESTDIR)" BINDIR="$(BINDIR)" LIBEXECDIR="$(LIBEXECDIR)" DATADIR="$(DATADIR)" \
	    SYSCONFDIR="$(SYSCONFDIR)" UNITDIR="$(UNITDIR)" SYSUSERSDIR="$(SYSUSERSDIR)" TMPFILESDIR="$(TMPFILESDIR)" BUILD="$(BUILD)" scripts/install.sh

clean:
	rm -rf build build-san build-fuzz

# ---- a machine with a GPU ----
## make check-gpu     everything that needs a GPU, in 8 minutes, on a machine that has one
## make gpu-kit       what such a machine needs of this one, if nothing can be installed there
# Tests of the verbs on the GPU itself.
CUDA_TESTS = $(addprefix $(BUILD)/cuda-tests/,$(shell cat tests/gpu/one-gpu-tests)) $(BUILD)/cuda-tests/run_job
cuda-tests: $(CUDA_TESTS)
cuda_test_libs = $(BUILD)/libtrainer-cuda.a $(call lib,trainer) $(BELOW)
$(BUILD)/cuda-tests/run_job: $(BUILD)/tests/gpu/run_job.o $(cuda_test_libs)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(CUDA_BACKEND) -o $@ $^ $(CUDA_LIBS) $(ALL_LIBS)
$(BUILD)/cuda-tests/%: $(BUILD)/tests/unit/%.o $(cuda_test_libs)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(CUDA_BACKEND) -o $@ $^ $(CUDA_LIBS) $(ALL_LIBS)
check-gpu:
	@scripts/check-gpu.sh $(OUT)

gpu-kit: deps-test
	@scripts/gpu-kit.sh $(BUILD)/gpu-kit

# ---- fuzz targets: tests/fuzz/<room>_<what>.c, linked like unit tests ----
FUZZ_SRCS := $(wildcard tests/fuzz/*.c)
fuzzers: $(FUZZ_SRCS:tests/fuzz/%.c=$(BUILD)/tests/fuzz/%)
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $$(unit_libs_$$(firstword $$(subst _, ,$$*)))
	$(call say,LD,$@)
	$(Q)$(CC) $(SAN) -fsanitize=fuzzer -o $@ $^ $(ALL_LIBS)

# ---- tools that tests and benchmarks use: tests/bench/*.c, tests/fault/*.c, each one program ----
TOOL_SRCS  := $(filter-out tests/fault/fake_nvml.c,$(wildcard tests/bench/*.c tests/fault/*.c tests/e2e/*.c tests/gpu/*.c))
TEST_TOOLS := $(TOOL_SRCS:%.c=$(BUILD)/%)
$(TEST_TOOLS): $(BUILD)/%: $(BUILD)/%.o $(call lib,trainer) $(call lib,spec) $(call lib,base)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -o $@ $^ $(ALL_LIBS)
# NVIDIA's management library, scripted: what an agent's probe loads in tests.
FAKE_NVML := $(BUILD)/tests/fault/libnvidia-ml.so.1
$(FAKE_NVML): tests/fault/fake_nvml.c daemon/agent/nvml.h
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CPPFLAGS_) $(CFLAGS_) -fPIC -shared -o $@ $< $(JANSSON_LIBS)
$(BUILD)/tests/unit/agent_gpus_look: | $(FAKE_NVML)
.SECONDARY:
