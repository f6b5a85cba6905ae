/* ink.h - lines, dots and words for plots, and their files. */
#ifndef ACR_CLI_INK_H
#define ACR_CLI_INK_H

#include <cairo.h>
#include <stdbool.h>

#define INK_NAME_BYTES 160

void ink_color(cairo_t *cr, unsigned rgb, double alpha);
void ink_font(cairo_t *cr, double size, bool bold);
double ink_width(cairo_t *cr, const char *s);
/* `align` is the share of the width left of x. */
void ink_text(cairo_t *cr, double x, double y, double align, const char *s);
void ink_line(cairo_t *cr, double x0, double y0, double x1, double y1);
void ink_dot(cairo_t *cr, double x, double y, unsigned rgb);
/* `s` into out[INK_NAME_BYTES]: as UTF-8 whatever it is, without its middle where it is wider than
 * `room`. */
void ink_fit(cairo_t *cr, char *out, const char *s, double room);

typedef void (*ink_draw)(cairo_t *cr, void *ctx);

/* Draws on nothing, to learn how wide words are. */
void ink_measure(ink_draw draw, void *ctx);
/* Draws a file of this size in pixels: PNG where the name ends so, else SVG.  0, or -1 with errno
 * set. */
int ink_picture(const char *path, double width, double height, ink_draw draw, void *ctx);

#endif
