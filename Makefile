# tandem: plan, prove, execute, simulate and plot mixed prefill/decode attention batches.
# `make demo` and `make test` each work as the first command in a fresh clone; `make help` lists the targets.

CC     ?= cc
CFLAGS ?= -O2 -g
SAN    ?=
V      ?= 0
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

CUDA  ?= 0# 1: with kernels (make cuda)

BUILD ?= build$(if $(filter 1,$(CUDA)),-cuda)$(if $(SAN),-san)
Q     := $(if $(filter 1,$(V)),,@)
comma := ,

# ---- dependencies: pinned to the OpenMP flavour of OpenBLAS, which runs serially inside our own parallel regions -------
OPENBLAS_DIR    := $(firstword $(patsubst %/libopenblas.so,%,$(wildcard /usr/lib/*/openblas-openmp/libopenblas.so /usr/lib64/openblas-openmp/libopenblas.so)))
OPENBLAS_CFLAGS := $(if $(OPENBLAS_DIR),-I$(subst /lib/,/include/,$(OPENBLAS_DIR)))
OPENBLAS_LIBS   := $(if $(OPENBLAS_DIR),-L$(OPENBLAS_DIR) -Wl$(comma)-rpath$(comma)$(OPENBLAS_DIR)) -lopenblas
NVCC            := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
PACKAGES        := gcc libc6-dev git libcmocka-dev libopenblas-openmp-dev libjansson-dev libinih-dev libzip-dev gnuplot-nox


# ---- CUDA: kernels for these architectures; nothing of it is needed without CUDA=1 ------------------------------------
CUDA_ARCHS ?= 80 89 90a 100a
CUDA_DIR   := $(patsubst %/bin/nvcc,%,$(NVCC))
NVCCFLAGS  ?= -O3 -lineinfo
ALL_NVCCFLAGS = -std=c++17 -I. $(NVCCFLAGS) $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a))
ifeq ($(CUDA),1)
ifeq ($(NVCC),)
$(error CUDA=1: no nvcc found: expected it in CUDA_HOME/bin, /usr/local/cuda/bin or on the PATH)
endif
CUDA_OBJ  := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard cuda/*.cu))
CUDA_LIBS := -L$(CUDA_DIR)/lib64 -lcudart_static -lstdc++ -ldl -lrt -lpthread
endif

GIT_ID := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

ALL_CFLAGS := -std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-missing-field-initializers -fopenmp -ffp-contract=off \
              -I. $(OPENBLAS_CFLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer) $(CFLAGS)
LDLIBS      = $(OPENBLAS_LIBS) -ljansson -linih -lzip $(CUDA_LIBS) -lm

LIB_SRC  := $(filter-out lab/main.c $(if $(CUDA_OBJ),cuda/exec_stub.c),$(wildcard sched/*.c ref/*.c sim/*.c cuda/*.c lab/*.c))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(CUDA_OBJ)
TEST_SRC := $(wildcard tests/test_*.c)
BENCH_SRC := $(wildcard tests/bench_*.c)
TEST_LIB := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(TEST_SRC) $(BENCH_SRC),$(wildcard tests/*.c)))
TESTS    := $(TEST_SRC:%.c=$(BUILD)/%)

.PHONY: all tandem cuda check-cuda demo test run-tests link-line file-flags deps check-deps help showconfig check-includes format format-check sanitize tsan valgrind soak bench bench-ref mutants clean FORCE
.SECONDARY:

all: ## build ./tandem (default)
	$(Q)test -e $(BUILD)/tandem || echo "building tandem (about a minute the first time)"
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/tandem
	$(Q)cmp -s $(BUILD)/tandem tandem || { cp $(BUILD)/tandem tandem.new && mv -f tandem.new tandem; }

tandem: all

$(BUILD)/tandem: $(BUILD)/lab/main.o $(LIB_OBJ)
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(TEST_LIB) $(LIB_OBJ)
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

$(BUILD)/tests/bench_%: $(BUILD)/tests/bench_%.o $(TEST_LIB) $(LIB_OBJ)
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(FLAGS_$*) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.cu
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(ALL_NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# The inner loops of ref/ are compiled once for each instruction set (ref/vector.h); which one runs is asked at run time.
ifneq ($(filter x86_64,$(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)),)
FLAGS_ref/vector_avx2   := -mavx2 -mfma -mf16c
FLAGS_ref/vector_avx512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
endif

# Only record.o knows the git id; it is rebuilt when that changes.
$(BUILD)/lab/record.o: ALL_CFLAGS += -DTANDEM_GIT='"$(GIT_ID)"'
$(BUILD)/lab/record.o: $(BUILD)/git-id
$(BUILD)/git-id: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(GIT_ID)' | cmp -s - $@ || echo '$(GIT_ID)' > $@

-include $(LIB_OBJ:.o=.d) $(TESTS:=.d) $(TEST_LIB:.o=.d) $(BUILD)/lab/main.d

DEMO_POLICIES := unified,serial,streams,fa3_varlen,fi_batch_pod,fi_holistic,stream_k,sm_partition,page_aware

demo: deps ## set up, compare nine schedulers on a mixed batch, draw the pictures (CPU only)
	$(Q)$(MAKE) --no-print-directory all
	./tandem compare --spec q2ks8k_63q1s1k_1q1s128k --policy $(DEMO_POLICIES) --gpu h200 --plot out/demo
	@echo; echo "pictures: out/demo/policies.png  out/demo/timeline.png  out/demo/work.png (and .svg, .pdf)"

cuda: ## build ./tandem with kernels for every architecture (nvcc, no GPU needed; minutes)
	$(Q)$(MAKE) --no-print-directory CUDA=1 all

check-cuda: ## the differential suite on the GPU that is here
	$(Q)$(MAKE) --no-print-directory CUDA=1 all
	$(Q)$(MAKE) --no-print-directory CUDA=1 build-cuda/tests/test_cuda
	$(Q)TANDEM_GPU_DIR=sim/gpus build-cuda/tests/test_cuda

test: deps ## set up, build and run every test
	$(Q)$(MAKE) --no-print-directory check-includes
	$(Q)$(MAKE) --no-print-directory all
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) $(TESTS)
	$(Q)$(MAKE) --no-print-directory run-tests

run-tests:
	$(Q)failed=; for t in $(TESTS); do echo "== $$t"; TANDEM_BIN=$(abspath $(BUILD))/tandem $$t || failed="$$failed $$t"; done; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed"; exit 1; fi
	@echo "all $(words $(TESTS)) test programs passed"

deps: ## check what is needed and install it with apt (as root)
	$(Q)sh tests/deps.sh $(PACKAGES)

showconfig: ## what this machine lets the build do
	@echo "compiler    $(CC): $$($(CC) --version | head -1)"
	@echo "flags       $(CFLAGS)$(if $(SAN), -fsanitize=$(SAN))"
	@echo "openblas    $(or $(OPENBLAS_DIR),default -lopenblas: OpenMP flavour not found (make deps))"
	@echo "gnuplot     $$(command -v gnuplot || echo 'none: no pictures')"
	@echo "cuda        $(if $(NVCC),$(NVCC): make cuda builds the kernels ($(CUDA_ARCHS)),no nvcc: CUDA left out)"
	@echo "threads     $$(nproc)"
	@echo "git id      $(GIT_ID)"

check-includes: ## enforce which directory may include and call what
	$(Q)sh tests/check_includes.sh

format: ## lay out all code
	$(Q)clang-format -i $$(git ls-files '*.c' '*.h')

format-check: ## is all code laid out?
	$(Q)if command -v clang-format >/dev/null; then clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h'); \
	else echo "format-check: skipped (no clang-format)"; fi

sanitize: ## tests under AddressSanitizer and UBSan
	$(Q)$(MAKE) --no-print-directory SAN=address,undefined test

tsan: ## the reference under ThreadSanitizer (clang, libomp, archer)
	$(Q)sh tests/run_tsan.sh test_semantics test_reference test_properties test_ref_properties

valgrind: ## the reference and file readers under memcheck
	$(Q)BUILD=$(BUILD) sh tests/run_valgrind.sh test_semantics test_reference test_npy test_batch_json

soak: all ## properties on 100,000 random batches (TANDEM_FUZZ_BATCHES; TANDEM_FUZZ_FIRST goes on after an interruption)
	$(Q)$(MAKE) --no-print-directory $(BUILD)/tests/test_properties
	$(Q)TANDEM_FUZZ_BATCHES=$${TANDEM_FUZZ_BATCHES:-100000} $(BUILD)/tests/test_properties

bench: all ## planning cost of every policy, against limits
	$(Q)$(MAKE) --no-print-directory $(BUILD)/tests/bench_planning
	$(Q)TANDEM_GPU_DIR=sim/gpus $(BUILD)/tests/bench_planning

bench-ref: all ## speed of the reference beside OpenBLAS and bare reads, two threads (5 minutes)
	$(Q)$(MAKE) --no-print-directory $(BUILD)/tests/bench_reference
	$(Q)TANDEM_GPU_DIR=sim/gpus OMP_PROC_BIND=true $(BUILD)/tests/bench_reference

link-line: # for tests/run_mutants.sh: compiler, flags, libraries, objects
	@printf '%s\n' '$(CC)' '$(ALL_CFLAGS)' '$(LDLIBS) -lcmocka' '$(LIB_OBJ) $(TEST_LIB)'

file-flags: # for tests/run_mutants.sh: flags of one file beside the common ones
	@echo '$(FLAGS_$(UNIT))'

mutants: all ## plant faults in the sources; the tests must find each
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) $(TESTS)
	$(Q)BUILD=$(BUILD) sh tests/run_mutants.sh

clean: ## remove everything built
	$(Q)rm -rf build build-san build-tsan build-cuda tandem out

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18
	@echo "  SAN=address,undefined builds into build-san; V=1 shows commands; BUILD=dir builds elsewhere"
