/* fuzz_arrow.c - of a stream that is accepted, every value of every row can be read. */
#include "fuzz.h"

#include "data/readers.h"

static int64_t read_all(const acr_arrow_list *list, int64_t row)
{
    int64_t begin = 0;
    int64_t end = 0;
    volatile int64_t last = 0;

    acr_arrow_span(&begin, &end, list, row);
    FUZZ_CHECK(begin <= end);
    last = acr_arrow_is_null(list->rows_there, row);
    for (int64_t i = begin; i < end; i++)
        last = list->values[i] + acr_arrow_is_null(list->values_there, i);
    (void)last;
    return end - begin;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    acr_arrow table = {0};
    accrue_error e;
    int64_t rows = 0;

    if (acr_arrow_append(&table, data, size, "input", &e) == ACCRUE_OK) {
        for (int64_t c = 0; c < table.n_chunks; c++) {
            const acr_arrow_chunk *chunk = &table.chunks[c];
            volatile int64_t length = 0, nulls = 0;
            FUZZ_CHECK(chunk->first == rows);
            for (int64_t i = 0; i < chunk->rows; i++) {
                read_all(&chunk->input_ids, i);
                read_all(&chunk->loss_mask, i);
                length = chunk->seq_len ? chunk->seq_len[i] : 0;
                nulls += acr_arrow_is_null(chunk->seq_len_there, i);
            }
            (void)length;
            (void)nulls;
            rows += chunk->rows;
        }
        FUZZ_CHECK(rows == table.rows);
    }
    acr_arrow_free(&table);
    return 0;
}
