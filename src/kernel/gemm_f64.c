/* gemm_f64.c - f64 products: single-threaded OpenBLAS on a fixed grid of output tiles.
 *
 * OpenBLAS is told to use one thread; the tiles are ours, so that which sums are formed, and in
 * which order, depends on the shape alone. */
#include "kernel/gemm.h"

#include <cblas.h>
#include <string.h>

enum { TILE_ROWS = 128, TILE_COLS = 256 };

void acr_gemm_f64_setup(void)
{
    openblas_set_num_threads(1);
}

static void run_tile(int64_t index, void *ctx)
{
    const acr_gemm_args *x = ctx;
    const int64_t across = (x->n + TILE_COLS - 1) / TILE_COLS;
    const int64_t i = index / across * TILE_ROWS, j = index % across * TILE_COLS;
    const int64_t m = x->m - i < TILE_ROWS ? x->m - i : TILE_ROWS;
    const int64_t n = x->n - j < TILE_COLS ? x->n - j : TILE_COLS;
    const bool a_transposed = x->layout == ACR_GEMM_TN, b_transposed = x->layout == ACR_GEMM_NT;
    const double *a = (const double *)x->a + (a_transposed ? i : i * x->lda);
    const double *b = (const double *)x->b + (b_transposed ? j * x->ldb : j);

    cblas_dgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
                b_transposed ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)x->k,
                1.0, a, (blasint)x->lda, b, (blasint)x->ldb, x->accumulate ? 1.0 : 0.0,
                (double *)x->c + i * x->ldc + j, (blasint)x->ldc);
}

void acr_gemm_f64(acr_gemm *g, const acr_gemm_args *x)
{
    acr_gemm_args args = *x;
    const int64_t tiles =
        ((x->m + TILE_ROWS - 1) / TILE_ROWS) * ((x->n + TILE_COLS - 1) / TILE_COLS);

    (void)g;
    if (x->k == 0) { /* the sum over nothing */
        for (int64_t i = 0; i < x->m && !x->accumulate; i++)
            memset((double *)x->c + i * x->ldc, 0, (size_t)x->n * sizeof(double));
        return;
    }
    acr_parallel(tiles, run_tile, &args);
}
