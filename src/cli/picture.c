/* picture.c - pictures as files, over cairo: SVG, and PNG at twice the size. */
#include "ink.h"

#include "cli.h"

#include <cairo-svg.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PNG_SCALE 2

bool plot_is_png(const char *path)
{
    size_t len = strlen(path);

    return len >= 4 && strcasecmp(path + len - 4, ".png") == 0;
}

bool plot_is_picture(const char *path)
{
    size_t len = strlen(path);

    return plot_is_png(path) || (len >= 4 && strcasecmp(path + len - 4, ".svg") == 0);
}

static cairo_status_t write_bytes(void *payload, const unsigned char *bytes, unsigned n)
{
    return fwrite(bytes, 1, n, payload) == n ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static cairo_t *begin(cairo_surface_t *surface)
{
    cairo_font_options_t *options = cairo_font_options_create();
    cairo_t *cr = cairo_create(surface);

    /* The same widths on paper and on screen. */
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
    cairo_set_font_options(cr, options);
    cairo_font_options_destroy(options);
    return cr;
}

/* Ends the drawing on `surface`; what cairo says of it. */
static cairo_status_t finish(cairo_t *cr, cairo_surface_t *surface)
{
    cairo_status_t status = cairo_status(cr);

    cairo_destroy(cr);
    cairo_surface_finish(surface);
    if (!status)
        status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    return status;
}

void ink_measure(ink_draw draw, void *ctx)
{
    cairo_surface_t *surface = cairo_recording_surface_create(CAIRO_CONTENT_COLOR_ALPHA, NULL);
    cairo_t *cr = begin(surface);

    draw(cr, ctx);
    (void)finish(cr, surface);
}

static cairo_status_t draw_svg(FILE *out, double width, double height, ink_draw draw, void *ctx)
{
    cairo_surface_t *surface = cairo_svg_surface_create_for_stream(write_bytes, out, width, height);
    cairo_t *cr = begin(surface);

    draw(cr, ctx);
    return finish(cr, surface);
}

static cairo_status_t draw_png(FILE *out, double width, double height, ink_draw draw, void *ctx)
{
    cairo_surface_t *surface = cairo_image_surface_create(
        CAIRO_FORMAT_RGB24, (int)(PNG_SCALE * width), (int)(PNG_SCALE * height));
    cairo_t *cr = begin(surface);
    cairo_status_t status = CAIRO_STATUS_SUCCESS, ended = CAIRO_STATUS_SUCCESS;

    cairo_scale(cr, PNG_SCALE, PNG_SCALE);
    draw(cr, ctx);
    status = cairo_surface_write_to_png_stream(surface, write_bytes, out);
    ended = finish(cr, surface);
    return status ? status : ended;
}

static int write_picture(const char *path, bool is_png, double width, double height, ink_draw draw,
                         void *ctx)
{
    cairo_status_t status = CAIRO_STATUS_SUCCESS;
    FILE *out = fopen(path, "we");
    bool failed = false;

    if (!out)
        return -1;
    errno = 0;
    status = (is_png ? draw_png : draw_svg)(out, width, height, draw, ctx);
    failed = status || ferror(out);
    if (status && !errno)
        errno = status == CAIRO_STATUS_NO_MEMORY ? ENOMEM : EIO;
    return fclose(out) || failed ? -1 : 0;
}

/* By way of another name, so that the picture before it stays where this one cannot be written. */
static int replace_picture(const char *path, bool is_png, double width, double height,
                           ink_draw draw, void *ctx)
{
    size_t room = strlen(path) + sizeof ".tmp";
    char *temporary = cli_realloc(NULL, room, 1);
    int failed = 0, reason = 0;

    snprintf(temporary, room, "%s.tmp", path);
    failed = write_picture(temporary, is_png, width, height, draw, ctx) || rename(temporary, path);
    if (failed) {
        reason = errno;
        unlink(temporary);
        errno = reason;
    }
    free(temporary);
    return failed ? -1 : 0;
}

int ink_picture(const char *path, double width, double height, ink_draw draw, void *ctx)
{
    char *real = realpath(path, NULL); /* a link stays one */
    const char *name = real ? real : path;
    struct stat is;
    bool device = stat(name, &is) == 0 && !S_ISREG(is.st_mode); /* which nothing may replace */
    int failed = (device ? write_picture : replace_picture)(name, plot_is_png(path), width, height,
                                                            draw, ctx);

    free(real);
    return failed;
}
