/* test_plot.c - accrue plot: what it reads, the table, and the pictures themselves. */
#include "cli_test.h"

#include <cairo.h>
#include <ctype.h>
#include <math.h>

#define T "train --verifier-name-or-path v "

/* The colours of the first two runs. */
enum { BLUE = 0x0072b2, VERMILLION = 0xd55e00, GREEN = 0x009e73 };

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Pictures -------------------------------------------------------------------------------- */

typedef struct picture {
    cairo_surface_t *surface;
    int width, height;
} picture;

static picture open_picture(const char *path)
{
    picture p = {.surface = cairo_image_surface_create_from_png(path)};

    if (cairo_surface_status(p.surface))
        fail_msg("%s: no PNG", path);
    p.width = cairo_image_surface_get_width(p.surface);
    p.height = cairo_image_surface_get_height(p.surface);
    return p;
}

/* Pixels of a colour in the column of panels and the row of panels given; all where -1.  The legend
 * is above them. */
static int pixels(const picture *p, unsigned rgb, int column, int row, int rows)
{
    const unsigned char *data = cairo_image_surface_get_data(p->surface);
    int stride = cairo_image_surface_get_stride(p->surface), n = 0;
    int head = p->height - 60 - 472 * rows;

    for (int y = head; y < p->height; y++)
        for (int x = 0; x < p->width; x++) {
            unsigned got = 0;
            memcpy(&got, data + (size_t)y * (size_t)stride + 4 * (size_t)x, 4);
            bool inside = (column < 0 || (x >= 36 + 940 * column && x < 36 + 940 * (column + 1))) &&
                          (row < 0 || (y >= head + 472 * row && y < head + 472 * (row + 1)));
            n += inside && (got & 0xffffff) == rgb;
        }
    return n;
}

/* Elements that open and close each other, attributes in quotes, one root: XML that is well formed.
 * Their number. */
static int elements_of(const char *path)
{
    static char text[1 << 21], open[64][32];
    FILE *f = fopen(path, "r");
    int depth = 0, n = 0, roots = 0;

    assert_non_null(f);
    size_t bytes = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    assert_true(bytes < sizeof text - 1);
    text[bytes] = '\0';
    for (const char *s = text; *s;) {
        if (*s != '<') {
            assert_true(depth > 0 || isspace((unsigned char)*s));
            assert_true(*s != '&' || strchr(s, ';'));
            s++;
            continue;
        }
        if (s[1] == '?') {
            s = strstr(s, "?>") + 2;
            continue;
        }
        bool closing = s[1] == '/';
        size_t len = strcspn(s + 1 + closing, " \n\t/>");
        assert_true(len > 0 && len < sizeof open[0]);
        const char *name = s + 1 + closing, *at = name + len;
        for (; *at != '>'; at++) {
            assert_true(*at && *at != '<');
            if (*at == '"') {
                at += 1 + strcspn(at + 1, "\"<");
                assert_int_equal(*at, '"');
            }
        }
        if (closing) {
            assert_true(depth > 0);
            depth--;
            assert_memory_equal(open[depth], name, len);
            assert_int_equal(open[depth][len], '\0');
        } else {
            n++;
            roots += depth == 0;
            assert_true(depth < 64);
            snprintf(open[depth], sizeof open[0], "%.*s", (int)len, name);
            depth += at[-1] != '/';
        }
        s = at + 1;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
    return n;
}

static void assert_picture(const char *path, int width)
{
    static unsigned char head[33];
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
    assert_int_equal(fseek(f, -8, SEEK_END), 0);
    unsigned char tail[8];
    assert_int_equal(fread(tail, 1, 8, f), 8);
    fclose(f);
    assert_memory_equal(head, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    assert_int_equal(head[16] << 24 | head[17] << 16 | head[18] << 8 | head[19], width);
    assert_memory_equal(tail, "IEND\xae\x42\x60\x82", 8);
}

/* Tests ----------------------------------------------------------------------------------- */

static void test_training_plot(void **state)
{
    (void)state;
    assert_int_equal(run(T "--save-path whole --epochs 2"), 0);
    assert_true(elements_of("whole/training.svg") > 100);
    assert_int_equal(run(T "--save-path one --epochs 1 --gradient-accumulation-steps 40 "
                           "--ttt-steps 1"),
                     0);
    assert_true(elements_of("one/training.svg") > 20);
}

/* Both formats without --out, one with it. */
static void test_two_runs(void **state)
{
    (void)state;
    assert_int_equal(run(T "--save-path runs/a --epochs 2"), 0);
    assert_int_equal(run(T "--save-path runs/b --epochs 1 --ttt-steps 4 --lr 5e-4"), 0);
    assert_int_equal(run("plot runs/a runs/b/ --title A~<&>~B"), 0);
    assert_non_null(strstr(out, "\nplot.svg\nplot.png\n"));
    assert_string_equal(err, "");
    assert_true(elements_of("plot.svg") > 100);
    assert_picture("plot.png", 3 * 940 + 72); /* ten panels, for four TTT steps */
    picture p = open_picture("plot.png");
    for (int panel = 0; panel < 10; panel++) {
        bool fourth = panel == 5 || panel == 8; /* which run a has not */
        assert_true(pixels(&p, VERMILLION, panel % 3, panel / 3, 4) > 50);
        assert_true(fourth == !pixels(&p, BLUE, panel % 3, panel / 3, 4));
    }
    assert_int_equal(pixels(&p, GREEN, -1, -1, 4), 0);
    cairo_surface_destroy(p.surface);

    assert_int_equal(unlink("plot.svg") | unlink("plot.png"), 0);
    assert_int_equal(run("plot --out=x.PNG runs/a"), 0);
    assert_non_null(strstr(out, "\nx.PNG\n"));
    assert_picture("x.PNG", 2 * 940 + 72);
    assert_int_not_equal(access("plot.svg", F_OK), 0);
    assert_int_not_equal(access("plot.png", F_OK), 0);
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(system("rm -rf t && mkdir -p t/first t/second"), 0);
    put("t/first/metrics.jsonl",
        "{\"model\": {\"config\": 1}}\n"
        "{\"train\": {\"loss\": 9.5, \"full_acc_0\": 0.25, \"cond_acc_0\": 0.25}, \"profile\": "
        "{\"tokens_per_s\": 100}, \"epoch\": 0, \"lr\": {\"Muon\": 0.1, \"AdamW\": 0.2}, "
        "\"global_step\": 0}\n"
        "{\"train\": {\"loss\": 4.25, \"full_acc_0\": 0.5, \"cond_acc_0\": 0.5}, \"profile\": "
        "{\"tokens_per_s\": 1234}, \"epoch\": 0, \"lr\": 0.1, \"global_step\": 1199}\n"
        "{\"val\": {\"loss_epoch\": 5.5, \"full_acc_0_epoch\": 0.375, \"cond_acc_0_epoch\": "
        "0.375}, "
        "\"epoch\": 0}\n"
        "{\"train\": {\"loss\": 4.5, \"full_acc_0\": 0.5, \"cond_acc_0\": 0.5}, \"profile\": "
        "{\"tokens_per_s\": 1300}, \"epoch\": 1, \"lr\": 0.1, \"global_step\": 1200}\n"
        "{\"val\": {\"loss_epoch\": 6, \"full_acc_0_epoch\": 0.25, \"cond_acc_0_epoch\": 0.25}, "
        "\"epoch\": 1}\n"
        "{\"train\": {\"lo");     /* as it is while the run writes */
    put("t/second/metrics.jsonl", /* flat records, no validation, a step taken again */
        "{\"step\": 0, \"epoch\": 0, \"loss\": 8, \"lr\": 0.1, \"full_acc_0\": 0.1, "
        "\"cond_acc_0\": 0.1}\n"
        "{\"step\": 1, \"epoch\": 0, \"loss\": 0.5}\n"
        "{\"step\": 1, \"epoch\": 0, \"loss\": null}\n");
    assert_int_equal(run("plot t/first t/second --out t/x.svg"), 0);
    assert_string_equal(
        out,
        "run     steps  epochs    loss   least  val loss    best  full_acc_0  accepted  tok/s\n"
        "------------------------------------------------------------------------------------\n"
        "first   1,201       2  4.5000  4.2500    6.0000  5.5000      0.3750     0.375   1234\n"
        "second      2       1       -  8.0000         -       -           -         -      -\n"
        "\nt/x.svg\n");
}

static void record(FILE *f, int step, const char *loss, double lr)
{
    fprintf(f,
            "{\"train\": {\"loss\": %s, \"full_acc_0\": 0.5, \"cond_acc_0\": 0.5}, \"epoch\": 0, "
            "\"lr\": %g, \"global_step\": %d}\n",
            loss, lr, step);
}

/* Values that are none leave gaps, alone ones are dots, and nothing at all is said so. */
static void test_odd_series(void **state)
{
    FILE *f = NULL;

    (void)state;
    assert_int_equal(system("rm -rf odd && mkdir -p odd/gap odd/none odd/dot odd/val"), 0);
    f = fopen("odd/gap/metrics.jsonl", "w");
    for (int i = 0; i < 20; i++)
        record(f, i, i % 2 ? "null" : "3.5", 1e-3);
    fclose(f);
    f = fopen("odd/none/metrics.jsonl", "w");
    for (int i = 0; i < 20; i++)
        record(f, i, "null", 1e-3);
    fclose(f);
    f = fopen("odd/dot/metrics.jsonl", "w");
    record(f, 6, "3.5", 0);
    fclose(f);
    put("odd/val/metrics.jsonl", "{\"val\": {\"loss_epoch\": 2}, \"epoch\": 0}\n");

    assert_int_equal(run("plot --smooth 1 odd/gap --out odd/gap.png"), 0);
    picture p = open_picture("odd/gap.png");
    int dots = pixels(&p, BLUE, 0, 0, 2);
    assert_in_range(dots, 10 * 20, 10 * 80); /* ten dots, no line between them */
    cairo_surface_destroy(p.surface);
    assert_int_equal(run("plot --smooth 9 odd/gap --out odd/gap.png"), 0); /* averaged or not */
    p = open_picture("odd/gap.png");
    assert_in_range(pixels(&p, BLUE, 0, 0, 2), dots / 2, 2 * dots);
    cairo_surface_destroy(p.surface);
    assert_int_equal(run("plot odd/none --out odd/none.png"), 0);
    p = open_picture("odd/none.png");
    assert_int_equal(pixels(&p, BLUE, 0, 0, 2), 0);
    assert_true(pixels(&p, BLUE, 1, 1, 2) > 500);
    cairo_surface_destroy(p.surface);
    assert_int_equal(run("plot odd/dot --out odd/dot.png"), 0);
    p = open_picture("odd/dot.png");
    assert_in_range(pixels(&p, BLUE, 0, 0, 2), 20, 80);
    cairo_surface_destroy(p.surface);
    assert_int_equal(run("plot odd/val --out odd/val.svg"), 0);
    assert_true(elements_of("odd/val.svg") > 20);
    assert_int_equal(run("plot odd/gap odd/none odd/dot odd/val --out odd/all.svg"), 0);
    assert_true(elements_of("odd/all.svg") > 100);
}

/* The same run out of any of its logs is the same picture. */
static void test_any_log(void **state)
{
    static char picture_of[3][1 << 20], table_of[3][2000];
    static const char *const keep[] = {"metrics.jsonl", "*.csv", "events.*"};
    size_t n[3] = {0, 0, 0};
    int blue[3] = {0, 0, 0};
    char command[300];

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(system("rm -rf any"), 0);
        assert_int_equal(run(T "--save-path out --epochs 3 --log-dir any --run-name full --loss-fn "
                               "{\"ce\":1} --logger csv,jsonl,tensorboard"),
                         0);
        snprintf(command, sizeof command, "mkdir any/run && cp any/full/%s any/run", keep[i]);
        assert_int_equal(system(command), 0);
        assert_int_equal(run("plot any/run --out any/x.png"), 0);
        picture p = open_picture("any/x.png");
        blue[i] = pixels(&p, BLUE, -1, -1, 4);
        cairo_surface_destroy(p.surface);
        assert_int_equal(run("plot any/run --out any/x.svg"), 0);
        FILE *f = fopen("any/x.svg", "r");
        n[i] = fread(picture_of[i], 1, sizeof picture_of[i], f);
        fclose(f);
        memcpy(table_of[i], out, sizeof table_of[i] - 1);
    }
    assert_true(n[0] > 10000);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(picture_of[0], picture_of[1], n[0]);
    assert_string_equal(table_of[0], table_of[1]);
    /* Event files hold floats, which is the same for people; a point has some 140 pixels. */
    assert_string_equal(table_of[0], table_of[2]);
    assert_in_range(blue[2], blue[0] - 40, blue[0] + 40);
    assert_int_equal(run("plot out/metrics.jsonl any/full/metrics.csv --out any/y.svg"), 0);
}

/* Quotes as spreadsheets and Python write them. */
static void test_quoted_csv(void **state)
{
    (void)state;
    assert_int_equal(system("rm -rf q && mkdir q"), 0);
    put("q/metrics.csv", "\"step\",\"epoch\",\"train/loss\",\"a \"\"b\"\", c\",train/full_acc_0\n"
                         "0,0,\"2.5\",\"x, \"\"y\"\"\",0.5\n"
                         "1,0,nan,,0.5\n"
                         "2,0,2");
    assert_int_equal(run("plot q --out q/x.svg"), 0);
    assert_non_null(strstr(out, "\nq        2       1     -  2.5000 "));
}

/* Names that are long, or no text. */
static void test_names(void **state)
{
    char command[1000] = "plot --out names/x.svg";

    (void)state;
    assert_int_equal(system("rm -rf names && mkdir -p names"), 0);
    for (int i = 0; i < 8; i++) {
        char path[200], file[260];
        snprintf(path, sizeof path,
                 "names/%d_a_name_\xc3\xa9t\xc3\xa9_that_is_longer_than_any_legend_has_room_for_%s",
                 i, i % 2 ? "\xff\xc0\xed\xa0\x80\t" : "\xe6\xbc\xa2\xe5\xad\x97");
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(file, sizeof file, "%s/metrics.jsonl", path);
        FILE *f = fopen(file, "w");
        record(f, 0, "1", 0);
        record(f, 1, "2", 1);
        fclose(f);
        size_t used = strlen(command);
        snprintf(command + used, sizeof command - used, " %s", path);
    }
    assert_int_equal(run(command), 0);
    assert_non_null(strstr(out, "\n7_a_name_"));
    assert_true(elements_of("names/x.svg") > 100);
}

static const struct {
    const char *command, *message;
} mistakes[] = {
    {"plot", "plot: a run's folder expected; see accrue plot --help"},
    {"plot --out x.svg", "plot: a run's folder expected; see accrue plot --help"},
    {"plot bad/none", "bad/none: No such file or directory"},
    {"plot bad/empty", "bad/empty: no metrics.jsonl, no metrics.csv and no event file in it"},
    {"plot bad/good bad/nothing", "bad/nothing: holds no step and no validation yet"},
    {"plot bad/good bad/json", "bad/json/metrics.jsonl: line 2: not JSON"},
    {"plot bad/list", "bad/list/metrics.jsonl: line 1: not a JSON object"},
    {"plot bad/epoch", "bad/epoch/metrics.jsonl: line 1: no epoch that is a whole number"},
    {"plot bad/huge", "bad/huge/metrics.jsonl: line 1: no epoch that is a whole number"},
    {"plot bad/step", "bad/step/metrics.jsonl: line 1: no global_step that is a whole number"},
    {"plot bad/row", "bad/row/metrics.csv: line 3: 2 fields, 3 columns in the header"},
    {"plot bad/quote", "bad/quote/metrics.csv: line 2: no row of CSV"},
    {"plot bad/head", "bad/head/metrics.csv: line 1: no header of CSV"},
    {"plot bad/folder", "bad/folder/metrics.jsonl: Is a directory"},
    {"plot bad/events", "bad/events/events.out.tfevents.1: Is a directory"},
    {"plot bad/good --out x.pdf", "--out: 'x.pdf', a name that ends in .svg or .png expected"},
    {"plot bad/good --out svg", "--out: 'svg', a name that ends in .svg or .png expected"},
    {"plot bad/good --smooth 0", "--smooth: 0, a whole number of at least 1 expected"},
    {"plot bad/good --lr 1", "unknown flag --lr; see accrue plot --help"},
    {"train --smooth 3 --verifier-name-or-path v",
     "unknown flag --smooth; see accrue train --help"},
    {"verify --out x.svg --verifier-name-or-path v",
     "unknown flag --out; see accrue verify --help"},
    {"plot 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17",
     "plot: 17 is one too many, at most 16 runs expected"},
};

static void test_mistakes(void **state)
{
    static const char *const folders[] = {"empty", "good",   "nothing", "json", "list",
                                          "epoch", "huge",   "step",    "row",  "quote",
                                          "head",  "folder", "events"};
    char path[100], expected[300];

    (void)state;
    assert_int_equal(system("rm -rf bad && mkdir bad"), 0);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, sizeof path, "bad/%s", folders[i]);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    assert_int_equal(mkdir("bad/folder/metrics.jsonl", 0777), 0);
    assert_int_equal(mkdir("bad/events/events.out.tfevents.1", 0777), 0);
    put("bad/good/metrics.jsonl", "{\"train\": {\"loss\": 1}, \"epoch\": 0, \"global_step\": 0}\n");
    put("bad/nothing/metrics.jsonl", "{\"epoch\": 0}\n");
    put("bad/json/metrics.jsonl", "{}\n{\"train\": {\n");
    put("bad/list/metrics.jsonl", "[1]\n");
    put("bad/epoch/metrics.jsonl", "{\"val\": {\"loss_epoch\": 1}, \"epoch\": \"0\"}\n");
    put("bad/huge/metrics.jsonl", "{\"val\": {\"loss_epoch\": 1}, \"epoch\": 1000000000000}\n");
    put("bad/step/metrics.jsonl",
        "{\"train\": {\"loss\": 1}, \"epoch\": 0, \"global_step\": 0.5}\n");
    put("bad/row/metrics.csv", "step,epoch,train/loss\r\n0,0,1\r\n1,0\r\n");
    put("bad/quote/metrics.csv", "step,epoch,train/loss\n0,0,\"1\n");
    put("bad/head/metrics.csv", "\"step\n");
    unlink("plot.svg");
    unlink("x.svg");
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        int code = run(mistakes[i].command);
        snprintf(expected, sizeof expected, "accrue: %s\n", mistakes[i].message);
        if (code != 2 || strcmp(err, expected) != 0 || out[0])
            fail_msg("%s: exit %d, stderr: %s", mistakes[i].command, code, err);
    }
    assert_int_not_equal(access("plot.svg", F_OK), 0);
    assert_int_not_equal(access("x.svg", F_OK), 0);
    assert_int_equal(run("plot bad/good --out none/x.png"), 1);
    assert_string_equal(err, "accrue: none/x.png: No such file or directory\n");
    assert_int_equal(symlink("/dev/full", "bad/full.svg"), 0);
    assert_int_equal(run("plot bad/good --out bad/full.svg"), 1);
    assert_string_equal(err, "accrue: bad/full.svg: No space left on device\n");
    assert_int_equal(symlink("/dev/full", "bad/full.png"), 0);
    assert_int_equal(run("plot bad/good --out bad/full.png"), 1);
    assert_string_equal(err, "accrue: bad/full.png: No space left on device\n");
}

/* A run's name is whatever a folder's is; a terminal must not obey it. */
static void test_names_are_cleaned(void **state)
{
    (void)state;
    assert_int_equal(system("rm -rf odd && mkdir odd"), 0);
    assert_int_equal(
        run("train --verifier-name-or-path v --epochs 1 --save-path odd/a\033[31m\xff"), 0);
    assert_int_equal(run("train --verifier-name-or-path v --epochs 1 --save-path odd/\u00fc"), 0);
    assert_int_equal(run("plot odd/a\033[31m\xff odd/\u00fc --out odd.svg"), 0);
    assert_non_null(strstr(out, "\na?[31m?     40 "));
    assert_non_null(strstr(out, "\n\u00fc           40 "));
    assert_null(strchr(out, '\033'));
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(run("plot --help"), 0);
    assert_non_null(strstr(out, "Usage: accrue plot [FLAG...] DIR..."));
    assert_non_null(strstr(out, "--smooth=N"));
    assert_null(strstr(out, "--json"));
    assert_int_equal(run("help"), 0);
    assert_non_null(strstr(out, "  plot      draw training runs over each other\n"));
    assert_int_equal(run("man"), 0);
    assert_non_null(strstr(out, "\n.B accrue plot\n"));
    assert_non_null(strstr(out, "\n.B \\-\\-smooth \\fIN\\fP\n"));
    assert_non_null(strstr(out, "\n.B \\-\\-logger \\fINAME,...\\fP\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_plot),
        cmocka_unit_test(test_two_runs),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_odd_series),
        cmocka_unit_test(test_any_log),
        cmocka_unit_test(test_quoted_csv),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_names_are_cleaned),
        cmocka_unit_test(test_help),
    };

    return cmocka_run_group_tests_name("plot", tests, NULL, NULL);
}
