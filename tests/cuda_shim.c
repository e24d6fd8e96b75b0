#include "tests/cuda_shim.h"

#include "lab/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define UNPOISON(p, n) ((void)0)
#endif

enum { STACK_BYTES = 64 << 10, BARRIERS = 16 };

/* What a thread waits for. */
enum meeting { GO, AT_WARP, AT_NAMED, AT_BLOCK, AT_FENCE, GONE };

/* ---- switching stacks: a dozen instructions where we know them, ucontext elsewhere ---------------------------------- */

#if defined(__x86_64__)
struct context {
    void *sp;
};
void shim_switch(void **from, void *to);
__asm__(".text\n"
        ".globl shim_switch\n"
        ".type shim_switch, @function\n"
        "shim_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n"
        "  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n"
        ".size shim_switch, .-shim_switch\n");

static void context_go(struct context *from, struct context *to)
{
    shim_switch(&from->sp, to->sp);
}

static void context_make(struct context *c, char *stack, void (*entry)(void))
{
    void **top = (void **)(((uintptr_t)stack + STACK_BYTES) & ~(uintptr_t)15);
    *--top = NULL;          /* entry never returns; keeps its stack aligned as after a call */
    *--top = (void *)entry; /* where the switch returns to */
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    c->sp = top;
}
#else
#include <ucontext.h>
struct context {
    ucontext_t u;
};

static void context_go(struct context *from, struct context *to)
{
    swapcontext(&from->u, &to->u);
}

static void context_make(struct context *c, char *stack, void (*entry)(void))
{
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = STACK_BYTES;
    c->u.uc_link = NULL;
    makecontext(&c->u, entry, 0);
}
#endif

/* ---- state ------------------------------------------------------------------------------------------------------- */

struct fiber {
    struct context context;
    char *stack;
    enum meeting at;
    int32_t barrier, expects; /* AT_NAMED */
    int32_t cta, thread;      /* of which slot; index in it */
    uint32_t exchange[2]; /* what shuffles read, two meetings deep: a value stays until all have read it */
    int32_t turn;
};

struct slot {
    bool busy;
    int32_t block; /* blockIdx */
    uint32_t sm;
    char *shared;
};

static struct fiber fibers[SHIM_MAX_RESIDENT][SHIM_MAX_THREADS];
static struct slot slots[SHIM_MAX_RESIDENT];
static const struct shim_launch *launch;
static struct fiber *now;
static struct context scheduler;
char shim_why[160];

struct shim_index shim_thread_index(void)
{
    return (struct shim_index){(unsigned)now->thread};
}

struct shim_index shim_block_index(void)
{
    return (struct shim_index){(unsigned)slots[now->cta].block};
}

struct shim_index shim_block_dim(void)
{
    return (struct shim_index){(unsigned)launch->threads};
}

uint32_t shim_sm(void)
{
    return slots[now->cta].sm;
}

static void wait_at(enum meeting m)
{
    now->at = m;
    context_go(&now->context, &scheduler);
}

void shim_sync_warp(void)
{
    wait_at(AT_WARP);
}

void shim_sync_block(void)
{
    wait_at(AT_BLOCK);
}

void shim_fence(void)
{
    wait_at(AT_FENCE);
}

void shim_sync_named(int32_t index, int32_t threads)
{
    now->barrier = index;
    now->expects = threads;
    wait_at(AT_NAMED);
}

static uint32_t exchange(uint32_t x, int lane)
{
    struct fiber *me = now;
    const int32_t turn = me->turn;
    me->turn = !turn;
    me->exchange[turn] = x;
    wait_at(AT_WARP);
    return fibers[me->cta][me->thread / 32 * 32 + lane].exchange[turn];
}

float shim_shuffle(float x, int lane)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = exchange(bits, lane);
    memcpy(&x, &bits, sizeof x);
    return x;
}

float shim_shuffle_xor(float x, int lane_mask)
{
    return shim_shuffle(x, (now->thread % 32) ^ lane_mask);
}

int32_t shim_shuffle_int(int32_t x, int lane)
{
    return (int32_t)exchange((uint32_t)x, lane);
}

/* ---- scheduling -------------------------------------------------------------------------------------------------- */

static void live(void)
{
    launch->kernel(launch->args, slots[now->cta].shared);
    for (;;)
        wait_at(GONE);
}

static void start_cta(int32_t s, int32_t block, struct rng *rng)
{
    slots[s].busy = true;
    slots[s].block = block;
    slots[s].sm = rng_below(rng, 4) ? (uint32_t)rng_below(rng, 200) : (uint32_t)rng_below(rng, 1 << 20);
    memset(slots[s].shared, 0xff, (size_t)launch->shared_bytes);
    for (int32_t t = 0; t < launch->threads; t++) {
        struct fiber *f = &fibers[s][t];
        char *stack = f->stack ? f->stack : malloc(STACK_BYTES);
        if (!stack) abort();
        UNPOISON(stack, STACK_BYTES);
        *f = (struct fiber){.stack = stack, .at = GO, .cta = s, .thread = t};
        context_make(&f->context, stack, live);
    }
}

/* Lanes of a warp up to their next meeting. false: they went to different ones. */
static bool run_warp(int32_t s, int32_t warp)
{
    for (int32_t lane = 0; lane < 32; lane++) {
        now = &fibers[s][warp * 32 + lane];
        now->at = GO;
        context_go(&scheduler, &now->context);
    }
    const struct fiber *first = &fibers[s][warp * 32];
    for (int32_t lane = 1; lane < 32; lane++)
        if (first[lane].at != first->at || (first->at == AT_NAMED && first[lane].barrier != first->barrier)) {
            snprintf(shim_why, sizeof shim_why, "CTA %d: lanes 0 and %d of warp %d part ways", slots[s].block,
                     lane, warp);
            return false;
        }
    return true;
}

static bool can_go(const struct fiber *warp)
{
    return warp->at == GO || warp->at == AT_WARP || warp->at == AT_FENCE;
}

/* Lets a barrier's warps go when all its threads are there. */
static void open_barriers(int32_t s)
{
    const int32_t warps = launch->threads / 32;
    int32_t at_block = 0, at[BARRIERS] = {0}, expects[BARRIERS] = {0};
    for (int32_t w = 0; w < warps; w++) {
        const struct fiber *f = &fibers[s][w * 32];
        at_block += f->at == AT_BLOCK;
        if (f->at != AT_NAMED) continue;
        at[f->barrier] += 32;
        expects[f->barrier] = f->expects;
    }
    for (int32_t w = 0; w < warps; w++) {
        struct fiber *f = &fibers[s][w * 32];
        if (f->at == AT_BLOCK && at_block == warps) f->at = GO;
        if (f->at == AT_NAMED && at[f->barrier] == expects[f->barrier]) f->at = GO;
    }
}

static bool is_over(int32_t s)
{
    for (int32_t w = 0; w < launch->threads / 32; w++)
        if (fibers[s][w * 32].at != GONE) return false;
    return true;
}

/* A warp that can go on, any; false: none. */
static bool pick_warp(struct rng *rng, int32_t *slot, int32_t *warp)
{
    int32_t n = 0;
    for (int32_t s = 0; s < launch->resident; s++)
        for (int32_t w = 0; slots[s].busy && w < launch->threads / 32; w++)
            if (can_go(&fibers[s][w * 32]) && rng_below(rng, (uint64_t)++n) == 0) {
                *slot = s;
                *warp = w;
            }
    return n > 0;
}

/* CTAs in any order, as many at once as may be. */
static bool run_all(int32_t *order, struct rng *rng)
{
    int32_t started = 0, over = 0;
    while (over < launch->n_ctas) {
        int32_t s, w;
        for (s = 0; s < launch->resident && started < launch->n_ctas; s++)
            if (!slots[s].busy) start_cta(s, order[started++], rng);
        if (!pick_warp(rng, &s, &w)) {
            snprintf(shim_why, sizeof shim_why, "threads wait at barriers that not all reach");
            return false;
        }
        const int32_t steps =
            1 + (int32_t)rng_below(rng, 60); /* the same warp for a while: faster, and as unfair */
        for (int32_t i = 0; i < steps && can_go(&fibers[s][w * 32]); i++)
            if (!run_warp(s, w)) return false;
        open_barriers(s);
        if (!is_over(s)) continue;
        slots[s].busy = false;
        over++;
    }
    return true;
}

bool shim_run(const struct shim_launch *l)
{
    struct rng rng = {l->seed};
    int32_t *order = malloc(((size_t)l->n_ctas + 1) * sizeof *order);
    if (!order) abort();
    launch = l;
    for (int32_t i = 0; i < l->n_ctas; i++) {
        const int32_t j = (int32_t)rng_below(&rng, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int32_t s = 0; s < l->resident; s++) {
        slots[s] = (struct slot){.shared = malloc((size_t)l->shared_bytes + 1)};
        if (!slots[s].shared) abort();
    }
    const bool ok = run_all(order, &rng);
    for (int32_t s = 0; s < l->resident; s++)
        free(slots[s].shared);
    free(order);
    return ok;
}
