#include "sched/status.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

static const struct {
    int exit_code;
    const char *text;
} table[] = {
#define X(code, exit_code, text) {exit_code, text},
    STATUS_LIST(X)
#undef X
};

static int known(enum status s)
{
    return (int)s >= 0 && (size_t)s < sizeof table / sizeof table[0];
}

const char *status_text(enum status s)
{
    return known(s) ? table[s].text : "internal error";
}

int status_exit_code(enum status s)
{
    return known(s) ? table[s].exit_code : 4;
}

enum status status_fail(struct why *why, enum status s, const char *format, ...)
{
    if (why) {
        va_list args;
        va_start(args, format);
        vsnprintf(why->text, sizeof why->text, format, args);
        va_end(args);
    }
    return s;
}
