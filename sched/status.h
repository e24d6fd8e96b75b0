/* status: how a call ended, and the one line that says why.
 *
 * Outside causes (bad input, no memory, a machine that lacks something) come back as `enum status`;
 * programmer mistakes assert. The exit status of the command is a property of the code (docs: "Exit status"
 * in the README). Nothing here prints: only lab/ does. */
#ifndef TANDEM_SCHED_STATUS_H
#define TANDEM_SCHED_STATUS_H

/*        code          exit  text */
#define STATUS_LIST(X)                                          \
    X(OK, 0, "ok")                                              \
    X(MISMATCH, 1, "a comparison failed")                       \
    X(INVALID_PLAN, 1, "the plan is not valid for this batch")  \
    X(BAD_INPUT, 2, "bad input")                                \
    X(UNKNOWN_NAME, 2, "unknown name")                          \
    X(TOO_LARGE, 2, "a size is too large")                      \
    X(IO, 2, "a file cannot be read or written")                \
    X(UNSUPPORTED, 3, "not supported on this machine or build") \
    X(INTERRUPTED, 4, "interrupted")                            \
    X(NO_MEMORY, 3, "out of memory")                            \
    X(INTERNAL, 4, "internal error")

enum status {
#define X(code, exit_code, text) STATUS_##code,
    STATUS_LIST(X)
#undef X
};

/* Why a call failed, in one line without a newline. Callers pass one zeroed or NULL (then the reason is
 * dropped). */
struct why {
    char text[512];
};

/* Texts and exit codes of the table above. An out of range value gives "internal error" and 4. */
const char *status_text(enum status s);
int status_exit_code(enum status s);

/* Formats the reason into *why (truncating, never failing; why may be NULL) and returns s, so that a check
 * and its report are one line: `if (n < 0) return status_fail(why, STATUS_BAD_INPUT, "qo_len %d: expected >=
 * 0", n);` */
#if defined(__GNUC__)
#define STATUS_PRINTF __attribute__((format(printf, 3, 4)))
#else
#define STATUS_PRINTF
#endif
enum status status_fail(struct why *why, enum status s, const char *format, ...) STATUS_PRINTF;

/* Check and forward in one line. */
#define TRY(expr)                                         \
    do {                                                  \
        enum status try_status_ = (expr);                 \
        if (try_status_ != STATUS_OK) return try_status_; \
    } while (0)

#endif
