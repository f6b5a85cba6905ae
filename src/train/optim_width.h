/* optim_width.h - the element loops of the optimizers for one width.  Included once per width, with
 * REAL the type, NAME(x) the suffixed name, SQRT its square root and MULTIPLY_ADD(a, b, c) its
 * a * b + c; deliberately no guard. */

/* LANES running sums, so that the loop has a fixed order and still fills several vectors. */
static inline double NAME(sum_squares)(int64_t n, const REAL *x)
{
    double lane[LANES] = {0};
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double value = (double)x[i + l];
            lane[l] += value * value;
        }
    for (; i < n; i++)
        lane[0] += (double)x[i] * (double)x[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static inline void NAME(accumulate)(int64_t n, const REAL *restrict grad, double divisor,
                                    bool first, REAL *restrict sum)
{
    const REAL d = (REAL)divisor;

    if (first)
        for (int64_t i = 0; i < n; i++)
            sum[i] = grad[i] / d;
    else
        for (int64_t i = 0; i < n; i++)
            sum[i] += grad[i] / d;
}

/* from + weight * (to - from), anchored at the nearer end so that a weight of 1 gives `to`.
 * MULTIPLY_ADD rounds once where that is fast, as the Python trainer's optimizers do. */
static inline REAL NAME(lerp)(REAL from, REAL to, REAL weight, REAL rest, bool near_from)
{
    return near_from ? MULTIPLY_ADD(weight, to - from, from) : MULTIPLY_ADD(-rest, to - from, to);
}

static inline void NAME(adamw)(int64_t n, const adamw_args *a, const REAL *restrict sum,
                               REAL *restrict param, REAL *restrict m, REAL *restrict v)
{
    const REAL factor = (REAL)a->factor, keep = (REAL)a->keep, eps = (REAL)a->eps;
    const REAL weight = (REAL)(1.0 - a->beta1), rest = (REAL)a->beta1;
    const REAL beta2 = (REAL)a->beta2, square_weight = (REAL)(1.0 - a->beta2);
    const REAL root_bias2 = (REAL)a->root_bias2, size = (REAL)-a->step_size;
    const bool near_from = 1.0 - a->beta1 < 0.5;

    for (int64_t i = 0; i < n; i++) {
        REAL g = sum[i] * factor;
        REAL first = NAME(lerp)(m[i], g, weight, rest, near_from);
        REAL second = v[i] * beta2 + square_weight * g * g;
        REAL denominator = SQRT(second) / root_bias2 + eps;
        m[i] = first;
        v[i] = second;
        param[i] = param[i] * keep + size * first / denominator;
    }
}

/* momentum moves towards the gradient; u is the gradient moved towards the new momentum. */
static inline void NAME(nesterov)(int64_t n, double factor, double momentum,
                                  const REAL *restrict sum, REAL *restrict buffer, REAL *restrict u)
{
    const REAL f = (REAL)factor, keep = (REAL)momentum, weight = (REAL)(1.0 - momentum);

    for (int64_t i = 0; i < n; i++) {
        REAL g = sum[i] * f;
        buffer[i] = NAME(lerp)(buffer[i], g, weight, keep, 1.0 - momentum < 0.5);
        u[i] = NAME(lerp)(g, buffer[i], keep, weight, momentum < 0.5);
    }
}

static inline void NAME(decay_and_add)(int64_t n, double keep, double scale, const REAL *restrict u,
                                       REAL *restrict param)
{
    const REAL k = (REAL)keep, s = (REAL)scale;

    for (int64_t i = 0; i < n; i++)
        param[i] = param[i] * k + s * u[i];
}

/* y = s * x + t * y, rounded once more where the products run in bf16. */
static inline void NAME(combine)(int64_t n, bool bf16, double s, const REAL *x, double t, REAL *y)
{
    const REAL a = (REAL)s, b = (REAL)t;

    /* As the processor's bf16 product ends: the scaled sum is rounded to f32, then one fma. */
    if (bf16)
        for (int64_t i = 0; i < n; i++)
            y[i] = (REAL)round_bf16(fmaf((float)a, (float)x[i], (float)(b * y[i])));
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = a * x[i] + b * y[i];
}

static inline void NAME(divide)(int64_t n, bool bf16, double divisor, REAL *x)
{
    const REAL d = (REAL)divisor;

    if (bf16)
        for (int64_t i = 0; i < n; i++)
            x[i] = (REAL)round_bf16((float)(x[i] / d));
    else
        for (int64_t i = 0; i < n; i++)
            x[i] = x[i] / d;
}

/* Rows [begin, end) of the transpose: out [cols, rows] = in [rows, cols]. */
static inline void NAME(transpose)(int64_t begin, int64_t end, int64_t rows, int64_t cols,
                                   const REAL *restrict in, REAL *restrict out)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = begin; c < end; c++)
            out[c * rows + r] = in[r * cols + c];
}

/* Rows [begin, end), columns below `begin_of_panel`, from the other triangle of x [m, m]. */
static inline void NAME(mirror)(int64_t begin, int64_t end, int64_t begin_of_panel, int64_t m,
                                REAL *x)
{
    for (int64_t j = 0; j < begin_of_panel; j++)
        for (int64_t i = begin; i < end; i++)
            x[i * m + j] = x[j * m + i];
}
