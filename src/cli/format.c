/* format.c - messages, and numbers for people and for files. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool muted;
static char kept[1200]; /* the latest error that was not shown */

void cli_mute(bool mute)
{
    int null = mute && !muted ? open("/dev/null", O_WRONLY) : -1;

    muted = mute;
    if (null < 0)
        return;
    dup2(null, STDOUT_FILENO);
    close(null);
}

bool cli_is_muted(void)
{
    return muted;
}

const char *cli_kept(void)
{
    return kept;
}

static void message(const char *prefix, const char *format, va_list args)
{
    char line[1200];

    vsnprintf(line, sizeof line, format, args);
    for (char *s = line; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127)
            *s = ' '; /* a file name or a value may hold one, a message is one line */
    if (muted && !*prefix)
        snprintf(kept, sizeof kept, "%s", line);
    if (muted)
        return;
    fflush(stdout);
    fprintf(stderr, "accrue: %s%s\n", prefix, line);
}

int cli_fail(int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    message("", format, args);
    va_end(args);
    return code;
}

void cli_notice(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    message("notice: ", format, args);
    va_end(args);
}

int cli_exit_code(accrue_status status)
{
    switch (status) {
    case ACCRUE_OK: return EXIT_SUCCESS;
    case ACCRUE_ENOMEM:
    case ACCRUE_ENUMERIC:
    case ACCRUE_ENOSPACE:
    case ACCRUE_ECANCELED:
    case ACCRUE_ECOMM:
    case ACCRUE_EVERIFY: return EXIT_FAILURE;
    default: return EXIT_BAD_INPUT;
    }
}

int cli_print_json(json_t *report)
{
    int failed = !report || json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));

    if (!failed)
        printf("\n");
    json_decref(report);
    return failed ? cli_fail(EXIT_FAILURE, "out of memory for the report") : EXIT_SUCCESS;
}

int cli_finish(int code)
{
    if (fflush(stdout))
        return cli_fail(EXIT_FAILURE, "standard output: %s", strerror(errno));
    if (ferror(stdout))
        return cli_fail(EXIT_FAILURE, "standard output: not everything could be written");
    return code;
}

void *cli_realloc(void *block, size_t count, size_t size)
{
    void *moved = NULL;

    if (!size || count <= SIZE_MAX / size)
        moved = realloc(block, count && size ? count * size : 1);
    if (!moved)
        exit(cli_fail(EXIT_FAILURE, "out of memory: %zu x %zu bytes", count, size));
    return moved;
}

figure format_count(int64_t n)
{
    figure digits, out;
    size_t k = 0;

    snprintf(digits.s, sizeof digits.s, "%lld", (long long)n);
    size_t len = strlen(digits.s);
    for (size_t i = 0; i < len && k + 2 < sizeof out.s; i++) {
        if (i && digits.s[i - 1] != '-' && (len - i) % 3 == 0)
            out.s[k++] = ',';
        out.s[k++] = digits.s[i];
    }
    out.s[k] = '\0';
    return out;
}

figure format_bytes(int64_t n)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double x = (double)n;
    size_t unit = 0;
    figure out;

    while (x >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        x /= 1000;
        unit++;
    }
    snprintf(out.s, sizeof out.s, unit && x < 99.95 ? "%.1f %s" : "%.0f %s", x, units[unit]);
    return out;
}

figure format_duration(double seconds)
{
    figure out;

    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(out.s, sizeof out.s, "-");
        return out;
    }
    long long s = llround(seconds);
    if (s >= 3600)
        snprintf(out.s, sizeof out.s, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out.s, sizeof out.s, "%lld:%02lld", s / 60, s % 60);
    return out;
}

figure format_short(double x)
{
    figure out;
    double a = fabs(x);

    if (a >= 100 && a < 1e6)
        snprintf(out.s, sizeof out.s, "%.1f", x);
    else if (a >= 10 && a < 100)
        snprintf(out.s, sizeof out.s, "%.2f", x);
    else if (a >= 1e-3 && a < 10)
        snprintf(out.s, sizeof out.s, "%.4f", x);
    else
        snprintf(out.s, sizeof out.s, "%.4g", x);
    return out;
}

figure format_exact(double x)
{
    figure out;

    if (!isfinite(x)) {
        snprintf(out.s, sizeof out.s, "null");
        return out;
    }
    for (int figures = 15; figures <= 17; figures++) {
        snprintf(out.s, sizeof out.s, "%.*g", figures, x);
        double back = strtod(out.s, NULL);
        if (back >= x && back <= x)
            break;
    }
    return out;
}

bool is_utf8(const char *s, size_t bytes)
{
    json_t *text = json_stringn(s, bytes);
    bool fine = text;

    json_decref(text);
    return fine;
}

void format_name(char *out, size_t bytes, const char *s)
{
    size_t n = 0;

    while (*s && n + 5 < bytes) {
        size_t len = 1;
        while (len < 4 && ((unsigned char)s[len] & 0xc0) == 0x80)
            len++;
        bool seen = (unsigned char)*s >= 0x20 && *s != 0x7f && is_utf8(s, len);
        if (!seen)
            len = 1;
        memcpy(out + n, seen ? s : "?", len);
        n += len;
        s += len;
    }
    out[n] = '\0';
}

double ratio(double sum, double total)
{
    return total > 0 || total < 0 ? sum / total : 0;
}
