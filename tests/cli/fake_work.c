/* fake_work.c - of the stand-in for the library: calls that go on where they were stopped. */
#include "fake_accrue.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void accrue_generate_options_init(accrue_generate_options *o, size_t struct_size)
{
    memset(o, 0, struct_size);
    *o = (accrue_generate_options){.struct_size = struct_size,
                                   .max_new_tokens = 512,
                                   .temperature = (double)NAN,
                                   .top_p = (double)NAN,
                                   .seed = 42,
                                   .batch_size = 16,
                                   .compute = ACCRUE_BF16};
}

/* Rows done, ten a call; a verifier "slow" takes its time over the second, and a "deaf" one is not
 * to be woken. */
static accrue_status work(const char *verifier, accrue_progress_cb cb, void *payload,
                          accrue_error *err)
{
    accrue_progress p = {.unit = "rows",
                         .total = 40,
                         .done = 10,
                         .found = 10,
                         .expected_bytes = 1200000,
                         .free_bytes = 3000000000};

    for (; p.done <= p.total; p.done += 10, p.tokens += 6000, p.seconds += 6) {
        if (strcmp(verifier, "slow") == 0 && p.done == 20)
            nanosleep(&(struct timespec){.tv_sec = 20}, NULL);
        for (int i = 0; strcmp(verifier, "deaf") == 0 && p.done == 20 && i < 2000; i++)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        if (cb(&p, payload)) {
            err->status = ACCRUE_ECANCELED;
            snprintf(err->message, sizeof err->message, "stopped with 20 of 40 rows done");
            return ACCRUE_ECANCELED;
        }
    }
    return ACCRUE_OK;
}

/* What arrived comes back in the report. */
accrue_status accrue_generate(accrue_generate_report *out, const accrue_generate_options *o,
                              accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = fail_as(o->verifier, "fail-", err);

    memset(out, 0, sizeof *out);
    if (!st)
        st = work(o->verifier, cb, payload, err);
    if (st)
        return st;
    *out = (accrue_generate_report){.rows = o->limit ? o->limit : 40,
                                    .found = 10,
                                    .made = 29,
                                    .answers = 31,
                                    .skipped = 1,
                                    .cut = o->max_new_tokens,
                                    .prompt_tokens = o->batch_size,
                                    .tokens = 18000 + (int64_t)o->seed,
                                    .temperature = isnan(o->temperature) ? 0.5 : o->temperature,
                                    .top_p = isnan(o->top_p) ? 0.25 : o->top_p,
                                    .seconds = 9};
    return ACCRUE_OK;
}

void accrue_extract_options_init(accrue_extract_options *o, size_t struct_size)
{
    memset(o, 0, struct_size);
    *o = (accrue_extract_options){
        .struct_size = struct_size, .data_path = "./output", .compute = ACCRUE_BF16};
}

accrue_status accrue_extract(accrue_extract_report *out, const accrue_extract_options *o,
                             accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = fail_as(o->verifier, "fail-", err);

    memset(out, 0, sizeof *out);
    if (!st)
        st = work(o->verifier, cb, payload, err);
    if (st)
        return st;
    *out = (accrue_extract_report){.rows = 40,
                                   .found = 10,
                                   .broken = o->n_target_layer_ids,
                                   .made = 30,
                                   .tokens = 18000 + (int64_t)o->compute,
                                   .bytes = 1234567,
                                   .needed_bytes = 1200000,
                                   .free_bytes = 3000000000,
                                   .seconds = 9};
    return ACCRUE_OK;
}
