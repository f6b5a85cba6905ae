/* fake_workflow.c - of the stand-in for the library, what comes before and after training. */
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void accrue_import_options_init(accrue_import_options *o, size_t struct_size)
{
    memset(o, 0, struct_size);
    o->struct_size = struct_size;
}

accrue_status accrue_import(accrue_import_report *out, const accrue_import_options *o,
                            accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_progress p = {.unit = "bytes", .done = 1000000, .total = 4000000, .seconds = 6};
    accrue_status st = fake_fail(o->model, "fail-", err);

    memset(out, 0, sizeof *out);
    if (st || cb(&p, payload))
        return st;
    *out = (accrue_import_report){.found = strcmp(o->model, "found") == 0,
                                  .architecture = "qwen3",
                                  .dtype = "bfloat16",
                                  .tensors = 12,
                                  .parameters = 3456,
                                  .layers = 1,
                                  .vocab_size = 789,
                                  .source_bytes = 2000000,
                                  .bytes = 4000000,
                                  .n_types = 1,
                                  .types = {{"Q4_K", 12, 3456, 2000000, 4000000}},
                                  .tokenizer = strcmp(o->model, "spm") != 0,
                                  .chat_template = strcmp(o->model, "found") == 0,
                                  .seconds = 2};
    if (!out->tokenizer)
        snprintf(out->tokenizer_why, sizeof out->tokenizer_why, "of another kind");
    return ACCRUE_OK;
}

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
    accrue_status st = fake_fail(o->verifier, "fail-", err);

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
    accrue_status st = fake_fail(o->verifier, "fail-", err);

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

void accrue_prepare_options_init(accrue_prepare_options *opt, size_t struct_size)
{
    memset(opt, 0, struct_size);
    opt->struct_size = struct_size;
    opt->output = "./output";
    opt->seq_length = 8192;
    opt->on_bad = ACCRUE_POLICY_RAISE;
    opt->max_bad = -1;
}

static void dump_prepare(const accrue_prepare_options *o)
{
    const char *path = getenv("FAKE_ACCRUE_OPTIONS");
    FILE *f = path ? fopen(path, "w") : NULL;

    if (!f)
        return;
    fprintf(f, "verifier=%s\noutput=%s\nfiles=", o->verifier, o->output);
    for (int i = 0; i < o->n_files; i++)
        fprintf(f, "%s,", o->files[i]);
    fprintf(f, "\nseq_length=%lld\nmax_samples=%lld\nminimum_valid_tokens=%lld\nseed=%llu\n",
            (long long)o->seq_length, (long long)o->max_samples, (long long)o->minimum_valid_tokens,
            (unsigned long long)o->seed);
    fprintf(f, "draft_vocab_size=%lld\nskip_token_freq=%d\noverwrite=%d\nallow_empty=%d\n",
            (long long)o->draft_vocab_size, o->skip_token_freq, o->overwrite,
            o->allow_empty_output);
    fprintf(f, "on_bad=%d\nmax_bad=%lld\n", (int)o->on_bad, (long long)o->max_bad);
    fclose(f);
}

accrue_status accrue_prepare(accrue_prepare_report *out, const accrue_prepare_options *opt,
                             accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_progress p = {
        .unit = "lines", .done = 1000, .total = 4000, .tokens = 50000, .seconds = 10};
    accrue_status st = fake_fail(opt->verifier, "fail-", err);

    dump_prepare(opt);
    memset(out, 0, sizeof *out);
    if (st)
        return st;
    if (cb(&p, payload)) {
        err->status = ACCRUE_ECANCELED;
        snprintf(err->message, sizeof err->message, "canceled");
        return ACCRUE_ECANCELED;
    }
    *out = (accrue_prepare_report){.lines = 4000,
                                   .rows = 4321,
                                   .tokens = 1234567,
                                   .supervised_tokens = 765432,
                                   .longest = 2048,
                                   .bytes = 20000000,
                                   .files = 1,
                                   .distinct_tokens = 9000,
                                   .seconds = 40};
    if (strcmp(opt->verifier, "faulty") == 0) {
        out->cut_rows = 12;
        out->bad_lines = 3;
        out->unanswered = 4;
        out->unsupervised_rows = 5;
        out->short_rows = 6;
        out->surplus_rows = 7;
        out->unknown_roles = 8;
        strcpy(out->unknown_role, "critic");
        strcpy(out->first_bad, "a.jsonl: line 7: broken");
    }
    out->found = strcmp(opt->verifier, "found") == 0;
    return ACCRUE_OK;
}

void accrue_export_options_init(accrue_export_options *opt, size_t struct_size)
{
    accrue_export_options d = {.struct_size = struct_size, .dtype = ACCRUE_EXPORT_BF16};

    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

accrue_status accrue_export(char **report, const accrue_export_options *opt, accrue_progress_cb cb,
                            void *payload, accrue_error *err)
{
    static const char text[] =
        "{\"path\": \"x.gguf\", \"bytes\": 1234, \"keys\": 5, \"parameters\": 64, \"lost\": "
        "[{\"what\": "
        "\"norm_output\", \"effect\": \"drafts worse\"}], \"tensors\": [{\"name\": \"fc.weight\", "
        "\"from\": \"fc.weight\", \"type\": \"Q8_0\", \"shape\": [8, 32], \"bytes\": 272}]}\n";
    accrue_progress p = {
        .unit = "bytes", .done = 1000, .total = 4000, .bytes = 1000, .seconds = 10};
    accrue_status st = fake_fail(opt->checkpoint, "fail-", err);

    *report = NULL;
    if (st)
        return st;
    if (cb && cb(&p, payload))
        return ACCRUE_ECANCELED;
    *report = malloc(sizeof text);
    if (!*report)
        return ACCRUE_ENOMEM;
    memcpy(*report, text, sizeof text);
    return ACCRUE_OK;
}
