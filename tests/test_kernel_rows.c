/* The row-wise kernels against plain loops, their gradients against differences, and the table. */
#include "kernel_test.h"

static const int64_t sizes[][2] = {{1, 1},    {1, 7},    {3, 16},    {5, 33},
                                   {70, 100}, {300, 65}, {33, 1100}, {130, 192}};

static void check_threads_agree(const acr_backend *be, const void *one, const void *more, int64_t n)
{
    assert_memory_equal(one, more, (size_t)n * be->real_bytes + 1);
}

static void test_bias(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++)
        for (int s = 0; s < ACR_COUNT(sizes); s++) {
            const acr_backend *be = widths[w];
            const int64_t rows = sizes[s][0], cols = sizes[s][1], ld = cols + 2, n = rows * ld;
            double *y = random_doubles(1, n), *b = random_doubles(2, cols);
            double *db = random_doubles(3, cols);
            void *ky = reals(be, y, n), *kb = reals(be, b, cols), *kdb = reals(be, db, cols);
            be->bias_backward(rows, cols, ky, ld, kdb);
            be->bias_forward(rows, cols, kb, ky, ld);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < cols; c++) {
                    db[c] += y[r * ld + c];
                    y[r * ld + c] += b[c];
                }
            check_close(be, ky, y, n, tolerance_of(be, 1e-15, 1e-7));
            check_close(be, kdb, db, cols, tolerance_of(be, 1e-13, 1e-5));
            free(y);
            free(b);
            free(db);
            free(ky);
            free(kb);
            free(kdb);
        }
}

static void naive_rmsnorm(int64_t cols, const double *x, const double *w, double *y)
{
    double squares = 0;

    for (int64_t c = 0; c < cols; c++)
        squares += x[c] * x[c];
    for (int64_t c = 0; c < cols; c++)
        y[c] = x[c] / sqrt(squares / (double)cols + 1e-5) * w[c];
}

/* d(sum y dy)/dx of one row by the quotient rule, written out per pair of elements. */
static void naive_rmsnorm_backward(int64_t cols, const double *x, const double *w, const double *dy,
                                   double *dx, double *dw)
{
    double squares = 0, rstd = 0;

    for (int64_t c = 0; c < cols; c++)
        squares += x[c] * x[c];
    rstd = 1 / sqrt(squares / (double)cols + 1e-5);
    for (int64_t c = 0; c < cols; c++) {
        dw[c] += dy[c] * x[c] * rstd;
        for (int64_t o = 0; o < cols; o++)
            dx[c] += dy[o] * w[o] *
                     ((o == c ? rstd : 0) - x[o] * x[c] * rstd * rstd * rstd / (double)cols);
    }
}

static void test_rmsnorm(void **state)
{
    (void)state;
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < ACR_COUNT(sizes); s++) {
            const acr_backend *be = widths[b];
            const int64_t rows = sizes[s][0], cols = sizes[s][1], ld = cols + 3, n = rows * ld;
            double *x = random_doubles(1, n), *w = random_doubles(2, cols);
            double *dy = random_doubles(3, n), *y = random_doubles(4, n);
            double *dx = random_doubles(5, n), *dw = random_doubles(6, cols);
            void *kx = reals(be, x, n), *kw = reals(be, w, cols), *kdy = reals(be, dy, n);
            void *ky = reals(be, y, n), *kdx = reals(be, dx, n), *kdw = reals(be, dw, cols);
            void *rstd = reals(be, NULL, rows);
            be->rmsnorm_forward(rows, cols, kx, ld, kw, 1e-5, ky, ld, rstd);
            be->rmsnorm_backward(rows, cols, kx, ld, kw, rstd, kdy, ld, kdx, ld, NULL);
            be->rmsnorm_backward(rows, cols, kx, ld, kw, rstd, kdy, ld, NULL, ld, kdw);
            for (int64_t r = 0; r < rows; r++) {
                naive_rmsnorm(cols, x + r * ld, w, y + r * ld);
                naive_rmsnorm_backward(cols, x + r * ld, w, dy + r * ld, dx + r * ld, dw);
            }
            check_close(be, ky, y, n, tolerance_of(be, 1e-14, 1e-6));
            check_close(be, kdx, dx, n, tolerance_of(be, 1e-12, 1e-5));
            check_close(be, kdw, dw, cols, tolerance_of(be, 1e-13, 1e-5));
            free(x);
            free(w);
            free(dy);
            free(y);
            free(dx);
            free(dw);
            free(kx);
            free(kw);
            free(kdy);
            free(ky);
            free(kdx);
            free(kdw);
            free(rstd);
        }
}

/* The naive backward above is itself held against differences. */
static void test_rmsnorm_differences(void **state)
{
    enum { N = 9 };
    double *x = random_doubles(1, N), *w = random_doubles(2, N), *dy = random_doubles(3, N);
    double dx[N] = {0}, dw[N] = {0}, y[N];

    (void)state;
    naive_rmsnorm_backward(N, x, w, dy, dx, dw);
    for (int i = 0; i < 2 * N; i++) {
        double *at_i = i < N ? &x[i] : &w[i - N], kept = *at_i, sums[2] = {0};
        for (int side = 0; side < 2; side++) {
            *at_i = kept + (side ? 1e-5 : -1e-5);
            naive_rmsnorm(N, x, w, y);
            for (int c = 0; c < N; c++)
                sums[side] += y[c] * dy[c];
        }
        *at_i = kept;
        assert_true(fabs((sums[1] - sums[0]) / 2e-5 - (i < N ? dx[i] : dw[i - N])) < 1e-9);
    }
    free(x);
    free(w);
    free(dy);
}

static void test_rope(void **state)
{
    enum { ROWS = 50, HEADS = 3, MAX_POSITION = 90 };

    (void)state;
    for (int w = 0; w < 2; w++)
        for (int depth = 2; depth <= 70; depth += 17 * 2) {
            const acr_backend *be = widths[w];
            const int half = depth / 2;
            const int64_t n = (int64_t)ROWS * HEADS * depth, table = (int64_t)MAX_POSITION * half;
            double *angle = random_doubles(1, table), *cosines = random_doubles(2, table);
            double *x = random_doubles(3, n), *y = random_doubles(4, n), *dx = random_doubles(5, n);
            int64_t position[ROWS];
            void *kc = NULL, *ks = NULL, *kx = reals(be, x, n), *ky = reals(be, y, n);
            void *kdx = reals(be, dx, n);
            for (int i = 0; i < ROWS; i++)
                position[i] = i * 37 % MAX_POSITION;
            for (int64_t i = 0; i < table; i++) {
                cosines[i] = cos(angle[i]);
                angle[i] = sin(angle[i]);
            }
            kc = reals(be, cosines, table);
            ks = reals(be, angle, table);
            be->rope_forward(ROWS, HEADS, depth, position, kc, ks, kx, ky);
            be->rope_backward(ROWS, HEADS, depth, position, kc, ks, kx, kdx);
            for (int64_t r = 0; r < ROWS * HEADS; r++)
                for (int i = 0; i < half; i++) {
                    const double c = cosines[position[r / HEADS] * half + i];
                    const double s = angle[position[r / HEADS] * half + i];
                    const double x1 = x[r * depth + i], x2 = x[r * depth + half + i];
                    y[r * depth + i] = x1 * c - x2 * s;
                    y[r * depth + half + i] = x2 * c + x1 * s;
                    dx[r * depth + i] += x1 * c + x2 * s;
                    dx[r * depth + half + i] += x2 * c - x1 * s;
                }
            check_close(be, ky, y, n, tolerance_of(be, 1e-15, 5e-7));
            check_close(be, kdx, dx, n, tolerance_of(be, 1e-15, 5e-7));
            free(angle);
            free(cosines);
            free(x);
            free(y);
            free(dx);
            free(kc);
            free(ks);
            free(kx);
            free(ky);
            free(kdx);
        }
}

static double silu(double g)
{
    return g / (1 + exp(-g));
}

static void test_swiglu(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++)
        for (int64_t n = 0; n < 40000; n = n * 3 + 5) {
            const acr_backend *be = widths[w];
            double *g = random_doubles(1, n), *u = random_doubles(2, n), *dy = random_doubles(3, n);
            double *y = random_doubles(4, n), *dg = random_doubles(5, n);
            double *du = random_doubles(6, n);
            void *kg = NULL, *ku = NULL, *kdy = NULL, *ky = reals(be, y, n), *kdg = NULL;
            void *kdu = reals(be, du, n);
            for (int64_t i = 0; i < n; i++)
                g[i] *= i % 7 == 3 ? 200 : 3; /* saturated gates too */
            for (int64_t i = 0; i < n; i++)
                g[i] = (double)(float)g[i];
            kg = reals(be, g, n);
            ku = reals(be, u, n);
            kdy = reals(be, dy, n);
            kdg = reals(be, dg, n);
            be->swiglu_forward(n, kg, ku, ky);
            be->swiglu_backward(n, kg, ku, kdy, kdg, kdu);
            for (int64_t i = 0; i < n; i++) {
                const double h = 1e-4;
                double slope = (8 * (silu(g[i] + h) - silu(g[i] - h)) -
                                (silu(g[i] + 2 * h) - silu(g[i] - 2 * h))) /
                               (12 * h);
                y[i] = silu(g[i]) * u[i];
                du[i] += dy[i] * silu(g[i]);
                dg[i] += dy[i] * u[i] * slope;
            }
            check_close(be, ky, y, n, tolerance_of(be, 1e-14, 1e-6));
            check_close(be, kdu, du, n, tolerance_of(be, 1e-14, 1e-6));
            check_close(be, kdg, dg, n, tolerance_of(be, 1e-9, 2e-6));
            free(g);
            free(u);
            free(dy);
            free(y);
            free(dg);
            free(du);
            free(kg);
            free(ku);
            free(kdy);
            free(ky);
            free(kdg);
            free(kdu);
        }
}

static void test_sums_and_copies(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++)
        for (int s = 0; s < ACR_COUNT(sizes); s++) {
            const acr_backend *be = widths[w];
            const int64_t rows = sizes[s][0], cols = sizes[s][1], ldx = cols + 1, ldy = cols + 2;
            const int64_t nx = 2 * rows * ldx, ny = 2 * rows * ldy;
            double *x = random_doubles(1, nx), *y = random_doubles(2, ny);
            int64_t *index = calloc((size_t)rows, sizeof *index);
            void *kx = reals(be, x, nx), *ky = reals(be, y, ny), *sum = reals(be, NULL, nx);
            assert_non_null(index);
            for (int64_t i = 0; i < rows; i++)
                index[i] = 2 * rows - 1 - 2 * i;
            be->gather_rows(rows, cols, index, kx, ldx, ky, ldy);
            for (int64_t i = 0; i < rows; i++)
                memcpy(y + i * ldy, x + index[i] * ldx, (size_t)cols * sizeof *y);
            check_close(be, ky, y, ny, 0);
            be->gather_add_rows(rows, cols, index, kx, ldx, ky, ldy);
            be->scatter_add_rows(rows, cols, index, kx, ldx, ky, ldy);
            for (int64_t i = 0; i < rows * cols; i++)
                y[i / cols * ldy + i % cols] += x[index[i / cols] * ldx + i % cols];
            for (int64_t i = 0; i < rows * cols; i++)
                y[index[i / cols] * ldy + i % cols] += x[i / cols * ldx + i % cols];
            check_close(be, ky, y, ny, tolerance_of(be, 1e-15, 3e-7));
            be->add(nx, kx, kx, sum);
            be->accumulate(nx, kx, sum);
            for (int64_t i = 0; i < nx; i++)
                x[i] *= 3;
            check_close(be, sum, x, nx, tolerance_of(be, 1e-15, 3e-7));
            free(x);
            free(y);
            free(index);
            free(kx);
            free(ky);
            free(sum);
        }
}

static void test_embed(void **state)
{
    static const acr_dtype types[] = {ACR_DTYPE_BF16, ACR_DTYPE_F16, ACR_DTYPE_F32, ACR_DTYPE_F64};
    enum { ROWS = 200, COLS = 100, WORDS = 31 };
    double *table = random_doubles(1, WORDS * COLS), *dy = random_doubles(2, ROWS * COLS);
    int64_t ids[ROWS];

    (void)state;
    for (int i = 0; i < ROWS; i++)
        ids[i] = i * i % WORDS; /* repeats, and some never */
    for (int i = 0; i < WORDS * COLS; i++)
        table[i] = (double)acr_f32_from_bf16(acr_bf16_from_f32((float)table[i]));
    for (int w = 0; w < 2; w++)
        for (int t = 0; t < ACR_COUNT(types); t++) {
            const acr_backend *be = widths[w];
            double *y = random_doubles(3, ROWS * COLS), *grad = random_doubles(4, WORDS * COLS);
            void *stored = calloc(WORDS * COLS, 8), *ky = reals(be, y, ROWS * COLS);
            void *kdy = reals(be, dy, ROWS * COLS), *kgrad = reals(be, grad, WORDS * COLS);
            assert_non_null(stored);
            acr_convert(types[t], stored, ACR_DTYPE_F64, table, WORDS * COLS);
            be->embed_forward(ROWS, COLS, ids, types[t], stored, ky);
            be->embed_backward(ROWS, COLS, ids, kdy, kgrad);
            for (int i = 0; i < ROWS * COLS; i++) {
                y[i] = table[ids[i / COLS] * COLS + i % COLS];
                grad[ids[i / COLS] * COLS + i % COLS] += dy[i];
            }
            check_close(be, ky, y, ROWS * COLS, types[t] == ACR_DTYPE_F16 ? 1e-6 : 0);
            check_close(be, kgrad, grad, WORDS * COLS, tolerance_of(be, 1e-14, 2e-6));
            free(y);
            free(grad);
            free(stored);
            free(ky);
            free(kdy);
            free(kgrad);
        }
    free(table);
    free(dy);
}

/* Sums over rows, the only results here that threads could change. */
static void test_threads(void **state)
{
    enum { ROWS = 500, COLS = 333 };
    double *x = random_doubles(1, ROWS * COLS), *w = random_doubles(2, COLS);
    int64_t ids[ROWS];

    (void)state;
    for (int i = 0; i < ROWS; i++)
        ids[i] = i % 7;
    for (int b = 0; b < 2; b++) {
        const acr_backend *be = widths[b];
        void *kx = reals(be, x, ROWS * COLS), *kw = reals(be, w, COLS);
        void *y = reals(be, NULL, ROWS * COLS), *rstd = reals(be, NULL, ROWS);
        void *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            void *sums = reals(be, NULL, 9 * COLS);
            char *p = sums;
            accrue_set_threads(threads);
            be->rmsnorm_forward(ROWS, COLS, kx, COLS, kw, 1e-5, y, COLS, rstd);
            be->bias_backward(ROWS, COLS, kx, COLS, p);
            p += (size_t)COLS * be->real_bytes;
            be->rmsnorm_backward(ROWS, COLS, kx, COLS, kw, rstd, y, COLS, NULL, 0, p);
            p += (size_t)COLS * be->real_bytes;
            be->embed_backward(ROWS, COLS, ids, kx, p);
            if (!first) {
                first = sums;
            } else {
                check_threads_agree(be, first, sums, 9 * COLS);
                free(sums);
            }
        }
        free(first);
        free(kx);
        free(kw);
        free(y);
        free(rstd);
    }
    free(x);
    free(w);
}

static void test_table(void **state)
{
    (void)state;
    assert_ptr_equal(acr_backend_for(ACR_DTYPE_F32), &acr_cpu_f32);
    assert_ptr_equal(acr_backend_for(ACR_DTYPE_F64), &acr_cpu_f64);
    assert_string_equal(acr_loss_name(ACR_LOSS_KL_DIV), "kl_div");
    assert_string_equal(acr_loss_name(ACR_LOSS_LK_HYBRID), "lk_hybrid");
    for (int w = 0; w < 2; w++) {
        const acr_backend *be = widths[w];
        const void *entry[sizeof *be / sizeof(void *)];
        assert_int_equal(be->real_bytes, acr_dtype_bytes(be->real));
        memcpy(entry, be, sizeof *be);
        for (size_t i = offsetof(acr_backend, gemm) / sizeof(void *);
             i < sizeof *be / sizeof(void *); i++)
            assert_non_null(entry[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rmsnorm_differences),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_sums_and_copies),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
