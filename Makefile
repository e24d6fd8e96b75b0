# tandem: plan, prove, execute and simulate mixed prefill/decode attention batches.
# `make help` lists the targets; `make showconfig` what this machine lets them do.

CC      ?= cc
CFLAGS  ?= -O2 -g
SAN     ?=
V       ?= 0

BUILD   := build$(if $(SAN),-san,)
Q       := $(if $(filter 1,$(V)),,@)

OPENBLAS_PC := $(firstword $(wildcard /usr/lib/*/openblas-openmp/pkgconfig/openblas.pc))
OPENBLAS_LIBDIR := $(patsubst %/pkgconfig/openblas.pc,%,$(OPENBLAS_PC))
OPENBLAS_CFLAGS := $(if $(OPENBLAS_PC),-I$(subst /lib/,/include/,$(OPENBLAS_LIBDIR)))
OPENBLAS_LIBS   := $(if $(OPENBLAS_LIBDIR),-L$(OPENBLAS_LIBDIR) -Wl$(comma)-rpath$(comma)$(OPENBLAS_LIBDIR) )-lopenblas
comma := ,

ALL_CFLAGS := -std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
              -ffp-contract=off -fopenmp -I. $(OPENBLAS_CFLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer) $(CFLAGS)
LDLIBS := $(OPENBLAS_LIBS) -ljansson -linih -lm

LIB_SRC  := $(filter-out lab/main.c,$(wildcard sched/*.c ref/*.c sim/*.c cuda/*.c lab/*.c))
TEST_SRC := $(wildcard tests/test_*.c)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
TESTS    := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)

tandem: $(BUILD)/tandem ## build the command (default)
	$(Q)cp $< $@

$(BUILD)/tandem: $(BUILD)/lab/main.o $(LIB_OBJ)
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(LIB_OBJ)
	$(Q)$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

$(BUILD)/%.o: %.c
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

test: $(TESTS) ## build and run every test
	$(Q)for t in $(TESTS); do echo "== $$t"; $$t || exit 1; done

clean: ## remove everything built
	$(Q)rm -rf build build-* tandem

.PHONY: test clean
.SECONDARY:
