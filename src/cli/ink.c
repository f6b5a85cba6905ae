/* ink.c - lines, dots and words for plots, over cairo. */
#include "ink.h"

#include "cli.h"

#include <math.h>
#include <string.h>

void ink_color(cairo_t *cr, unsigned rgb, double alpha)
{
    cairo_set_source_rgba(cr, (rgb >> 16 & 255) / 255.0, (rgb >> 8 & 255) / 255.0,
                          (rgb & 255) / 255.0, alpha);
}

void ink_font(cairo_t *cr, double size, bool bold)
{
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, size);
}

double ink_width(cairo_t *cr, const char *s)
{
    cairo_text_extents_t e;

    cairo_text_extents(cr, s, &e);
    return e.x_advance;
}

void ink_text(cairo_t *cr, double x, double y, double align, const char *s)
{
    cairo_move_to(cr, x - align * ink_width(cr, s), y);
    cairo_show_text(cr, s);
}

void ink_line(cairo_t *cr, double x0, double y0, double x1, double y1)
{
    cairo_move_to(cr, x0, y0);
    cairo_line_to(cr, x1, y1);
    cairo_stroke(cr);
}

void ink_dot(cairo_t *cr, double x, double y, unsigned rgb)
{
    cairo_new_sub_path(cr);
    cairo_arc(cr, x, y, 4, 0, 2 * acos(-1.0));
    ink_color(cr, rgb, 1);
    cairo_fill_preserve(cr);
    ink_color(cr, 0xffffff, 1);
    cairo_set_line_width(cr, 1.2);
    cairo_stroke(cr);
}

static bool continues(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

void ink_fit(cairo_t *cr, char *out, const char *s, double room)
{
    char whole[INK_NAME_BYTES];

    format_name(whole, sizeof whole, s);
    size_t n = strlen(whole), keep = n / 2;
    memcpy(out, whole, n + 1);
    while (ink_width(cr, out) > room && keep > 2) {
        size_t head = --keep, tail = n - keep;
        while (head && continues(whole[head]))
            head--;
        while (continues(whole[tail]))
            tail++;
        snprintf(out, INK_NAME_BYTES, "%.*s\u2026%.*s", (int)head, whole, (int)(n - tail),
                 whole + tail);
    }
}
