/* test_loggers.c - what --logger writes, read back by readers made from the formats alone. */
#include "cli_test.h"
#include "events.h"

#include <math.h>
#include <sys/resource.h>
#include <time.h>

#define T "train --verifier-name-or-path v "

/* TensorBoard ----------------------------------------------------------------------------- */

/* The values that a record of metrics.jsonl holds, under the names that they have elsewhere. */
static void assert_event_is(const event *e, const json_t *record)
{
    const char *key = NULL, *inner = NULL;
    json_t *v = NULL, *w = NULL;
    char name[100];
    int n = 0;

    json_object_foreach((json_t *)(uintptr_t)record, key, v)
    {
        if (!json_is_object(v)) {
            assert_string_equal(e->tag[n], key);
            assert_true(fabsf(e->value[n++] - (float)json_number_value(v)) <= 0);
            continue;
        }
        json_object_foreach(v, inner, w)
        {
            snprintf(name, sizeof name, "%s/%s", key, inner);
            assert_string_equal(e->tag[n], name);
            assert_true(fabsf(e->value[n++] - (float)json_number_value(w)) <= 0);
        }
    }
    assert_int_equal(e->n, n);
}

/* The events with values against all records: names, values, and steps as the peer counts them. */
static void assert_events_are(const char *metrics)
{
    json_t *records = load_records(metrics);
    size_t n = json_array_size(records), next = 0;

    for (int i = 0; i < n_events; i++) {
        if (!events[i].n)
            continue;
        assert_true(next < n);
        const json_t *record = json_array_get(records, next++);
        assert_event_is(&events[i], record);
        if (json_object_get(record, "val"))
            assert_int_equal(events[i].step, 40 * (1 + number(record, NULL, "epoch")));
        else
            assert_int_equal(events[i].step, number(record, NULL, "global_step"));
    }
    assert_int_equal(next, n);
    json_decref(records);
}

static void test_tensorboard(void **state)
{
    char file[400], name[200], host[128] = "";
    time_t before = time(NULL);

    (void)state;
    assert_int_equal(crc32c((const uint8_t *)"123456789", 9), 0xe3069283);
    assert_int_equal(run(T "--save-path tb/out --epochs 2 --logger tensorboard --log-dir tb/logs "
                           "--run-name first --loss-fn {\"ce\":1}"),
                     0);
    assert_non_null(strstr(out, "per step\nlogs in tb/logs/first\n"));
    assert_non_null(strstr(out, "tb/out/training.svg, tb/logs/first\n"));
    assert_int_equal(read_event_folder("tb/logs/first", file), 1);
    gethostname(host, sizeof host - 1);
    assert_true(strtoll(file + strlen("tb/logs/first/events.out.tfevents."), NULL, 10) >= before);
    assert_non_null(strstr(file, host));
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_int_equal(events[1].session, 1);
    assert_int_equal(events[1].step, 0);
    for (int i = 0; i < n_events; i++)
        assert_in_range((int64_t)events[i].wall_time, before, time(NULL));
    assert_int_equal(n_events, 2 + 80 + 2);
    assert_events_are("tb/out/metrics.jsonl");
    assert_int_equal(events[42].step, 40); /* the validation, as the peer has it */
    assert_string_equal(events[42].tag[0], "val/loss_0_epoch");

    /* A run that begins anew under the name takes the place of the first one, whatever the clock
     * says: readers go by the names. */
    long long late = (long long)before + 5000;
    snprintf(name, sizeof name, "tb/logs/first/events.out.tfevents.%lld.z.9.9", late);
    save(name, "", 0);
    assert_int_equal(run(T "--save-path tb/out --epochs 1 --logger tensorboard --log-dir tb/logs "
                           "--run-name first --log-freq 7 --optimizer adamw"),
                     0);
    assert_int_equal(read_event_folder("tb/logs/first", file), 3);
    assert_int_equal(strtoll(file + strlen("tb/logs/first/events.out.tfevents."), NULL, 10),
                     late + 1);
    assert_events_are("tb/out/metrics.jsonl");
    assert_int_equal(run("plot tb/logs/first --out tb/x.svg"), 0);
    assert_non_null(strstr(out, "tb/logs/first     36       1 ")); /* no epoch of the first run's */
}

/* The file that TensorBoard's own reader was tried on, but for the times. */
static void test_golden_events(void **state)
{
    static uint8_t golden[4096], made[4096];
    char file[400];
    size_t n = load(golden, sizeof golden, ACR_TEST_DATA "/events.golden"), at = 0;

    (void)state;
    assert_int_equal(run(T "--save-path gold/out --epochs 1 --gradient-accumulation-steps 20 "
                           "--ttt-steps 2 --logger tensorboard --log-dir gold --run-name run"),
                     0);
    assert_int_equal(read_event_folder("gold/run", file), 1);
    assert_int_equal(load(made, sizeof made, file), n);
    while (at < n) {
        size_t len = (size_t)little(golden + at, 8);
        assert_memory_equal(made + at, golden + at, 13); /* length, checksum, key of wall_time */
        assert_memory_equal(made + at + 21, golden + at + 21, len - 9);
        assert_int_equal(little(golden + at + 12 + len, 4), masked(golden + at + 12, len));
        at += len + 16;
    }
    assert_int_equal(at, n);
}

static void resume_at(const char *where)
{
    if (where)
        setenv("FAKE_ACCRUE_RESUME", where, 1);
    else
        unsetenv("FAKE_ACCRUE_RESUME");
}

static void append_to(const char *path, const char *bytes)
{
    FILE *f = fopen(path, "a");

    assert_non_null(f);
    fputs(bytes, f);
    fclose(f);
}

static void assert_same_file(const char *a, const char *b)
{
    static char text[OUTPUT_BYTES * 4];
    static char other[OUTPUT_BYTES * 4];
    size_t n = load((uint8_t *)text, sizeof text, a);

    if (n != load((uint8_t *)other, sizeof other, b) || memcmp(text, other, n) != 0)
        fail_msg("%s and %s differ", a, b);
}

/* Stopped after an epoch, before its validation, in mid-epoch, at the end: the logs are those of a
 * run that was never stopped, whatever stood in them. */
static void test_resume(void **state)
{
    static const char *const starts[] = {"1 40 0", "0 40 40", "1 50 10", "2 80 0"};
    static const char command[] =
        T "--save-path res/out --epochs 2 --logger tensorboard,~csv,jsonl --log-dir res/logs "
          "--run-name run --loss-fn {\"ce\":1}";
    char file[400];

    (void)state;
    assert_int_equal(run(command), 0);
    assert_int_equal(system("rm -rf whole && cp -r res/logs/run whole"), 0);
    assert_same_file("whole/metrics.jsonl", "res/out/metrics.jsonl");
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        assert_int_equal(run(command), 0);
        append_to("res/out/metrics.jsonl", "{\"train\": {\"lo");
        append_to("res/logs/run/metrics.jsonl", "{\"train\": {\"lo");
        append_to("res/logs/run/metrics.csv", "80,1,0.5");
        append_to("res/logs/run/validation.csv", "80,1");
        read_event_folder("res/logs/run", file);
        append_to(file, "\1\2\3\4");
        resume_at(starts[i]);
        assert_int_equal(run(command), 0);
        resume_at(NULL);
        assert_same_file("whole/metrics.jsonl", "res/out/metrics.jsonl");
        assert_same_file("whole/metrics.jsonl", "res/logs/run/metrics.jsonl");
        assert_same_file("whole/metrics.csv", "res/logs/run/metrics.csv");
        assert_same_file("whole/validation.csv", "res/logs/run/validation.csv");
        assert_int_equal(read_event_folder("res/logs/run", file), 3 + 2 * (int)i);
        assert_events_are("res/out/metrics.jsonl");
    }
}

/* CSV ------------------------------------------------------------------------------------- */

static int columns_of(const char *line)
{
    int n = 1;

    for (; *line && *line != '\r'; line++)
        n += *line == ',';
    return n;
}

static void test_csv(void **state)
{
    char *line = NULL, *rest = NULL;
    int rows = 0;

    (void)state;
    assert_int_equal(run(T "--save-path csv/out --epochs 2 --gradient-accumulation-steps 4 "
                           "--log-freq 3 --logger csv --log-dir csv --run-name run"),
                     0);
    assert_int_not_equal(access("csv/run/metrics.jsonl", F_OK), 0);
    read_file(out, "csv/run/metrics.csv");
    static const char header[] =
        "step,epoch,train/loss_0,train/full_acc_0,train/cond_acc_0,train/loss_1,train/full_acc_1,"
        "train/cond_acc_1,train/loss_2,train/full_acc_2,train/cond_acc_2,train/loss,"
        "train/error_records,profile/fetch_ms,profile/fwd_bwd_ms,profile/opt_ms,profile/step_ms,"
        "profile/fetch_frac,profile/tokens_per_s,lr/Muon,lr/AdamW,grad_norm\r\n";
    assert_memory_equal(out, header, sizeof header - 1);
    json_t *records = load_records("csv/out/metrics.jsonl");
    int kept[2] = {0, 0};
    for (line = strtok_r(out + sizeof header - 1, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        double step = 0, epoch = 0, loss_0 = 0;
        assert_int_equal(sscanf(line, "%lf,%lf,%lf,", &step, &epoch, &loss_0), 3);
        assert_int_equal(step, 3 * rows);
        const json_t *record = json_array_get(records, (size_t)(rows + (rows > 3)));
        assert_int_equal(number(record, NULL, "global_step"), step);
        assert_true(fabs(number(record, "train", "loss_0") - loss_0) <= 0);
        assert_int_equal(columns_of(line), columns_of(header));
        assert_int_equal(line[strlen(line) - 1], '\r');
        kept[(int)epoch]++;
        rows++;
    }
    assert_int_equal(rows, 7);
    assert_int_equal(kept[0], 4);
    json_decref(records);
    read_file(out, "csv/run/validation.csv");
    assert_memory_equal(out, "step,epoch,val/loss_0_epoch,val/full_acc_0_epoch,", 49);
    assert_non_null(strstr(out, ",val/loss_epoch\r\n10,0,"));
    assert_non_null(strstr(out, "\r\n20,1,"));
    assert_int_equal(count_lines(out), 3);
}

static void test_other_columns(void **state)
{
    (void)state;
    assert_int_equal(run(T "--save-path cols --epochs 1 --logger csv --log-dir . --run-name c"), 0);
    resume_at("0 20 20");
    assert_int_equal(run(T "--save-path cols --epochs 1 --logger csv --log-dir . --run-name c "
                           "--ttt-steps 2"),
                     1);
    resume_at(NULL);
    expect_text(err, "accrue: ./c/metrics.csv: has other columns than this run; --run-name gives "
                     "it a folder of its own; no records from step 20 on\n");
}

/* Names ----------------------------------------------------------------------------------- */

#define TWENTY  "aaaaaaaaaaaaaaaaaaaa"
#define HUNDRED TWENTY TWENTY TWENTY TWENTY TWENTY

static const struct {
    const char *command, *message;
} mistakes[] = {
    {T "--logger wandb", "--logger wandb is not supported; tensorboard, csv and jsonl are"},
    {T "--logger csv,~trackio",
     "--logger trackio is not supported; tensorboard, csv and jsonl are"},
    {T "--logger mlflow", "--logger mlflow is not supported; tensorboard, csv and jsonl are"},
    {T "--logger tensorbord", "--logger: 'tensorbord', one of tensorboard, csv, jsonl expected"},
    {T "--logger csv,", "--logger: '', one of tensorboard, csv, jsonl expected"},
    {T "--logger ,csv", "--logger: '', one of tensorboard, csv, jsonl expected"},
    {T "--logger cs", "--logger: 'cs', one of tensorboard, csv, jsonl expected"},
    {T "--log-dir ''", "--log-dir: '', a folder expected"},
    {T "--run-name {tmie}", "--run-name: {tmie}: no such placeholder; did you mean {time}?"},
    {T "--dry-run --run-name x-{local-rank}/y",
     "--run-name: {local-rank}: no such placeholder; did you mean {local_rank}?"},
    {T "--run-name {}",
     "--run-name: {}: no such placeholder; {time}, {utc_time}, {rank} and {local_rank} are known"},
    {T "--run-name a{qqqqqqqqqqqq}",
     "--run-name: {qqqqqqqqqqqq}: no such placeholder; {time}, {utc_time}, {rank} and {local_rank} "
     "are known"},
    {T "--logger csv --run-name " HUNDRED HUNDRED "{time}" HUNDRED,
     "--run-name: a name of 319 bytes, at most 255 expected"},
    {T "--dry-run --logger csv --run-name " HUNDRED HUNDRED HUNDRED,
     "--run-name: a name of 300 bytes, at most 255 expected"},
    {T "--logger csv --log-dir a/" HUNDRED HUNDRED HUNDRED "/b",
     "--log-dir: a name of 300 bytes, at most 255 expected"},
    {T "--logger csv --run-name a{rank}",
     "RANK in the environment: 'two', a whole number expected"},
    {T "--logger csv --run-name {local_rank}",
     "LOCAL_RANK in the environment: '', a whole number expected"},
};

static void test_mistakes(void **state)
{
    char expected[300];

    (void)state;
    setenv("RANK", "two", 1);
    setenv("LOCAL_RANK", "", 1);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        int code = run(mistakes[i].command);
        snprintf(expected, sizeof expected, "accrue: %s\n", mistakes[i].message);
        if (code != 2 || strcmp(err, expected) != 0 || out[0])
            fail_msg("%s: exit %d, stderr: %s", mistakes[i].command, code, err);
    }
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    assert_int_not_equal(access("logs", F_OK), 0);
    assert_int_not_equal(access("output", F_OK), 0);
}

/* The one entry of a folder. */
static void only_entry(char *name, const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;

    assert_non_null(dir);
    for (const struct dirent *d = NULL; (d = readdir(dir));)
        if (d->d_name[0] != '.') {
            snprintf(name, 256, "%s", d->d_name);
            n++;
        }
    closedir(dir);
    assert_int_equal(n, 1);
}

/* "2026-01-02T03:04:05" in the local time zone or UTC, of about now. */
static void assert_is_now(const char *text, bool utc)
{
    struct tm parts = {.tm_isdst = -1};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);

    assert_non_null(end);
    assert_int_equal(end - text, 19);
    parts.tm_isdst = -1;
    time_t then = utc ? timegm(&parts) : mktime(&parts);
    assert_in_range(time(NULL) - then, 0, 60);
}

static void test_run_names(void **state)
{
    char name[256];

    (void)state;
    setenv("TZ", "XST-5:30", 1); /* five and a half hours ahead of UTC */
    tzset();
    setenv("RANK", "3", 1);
    assert_int_equal(run(T "--save-path name/out --epochs 1 --logger csv --log-dir name/a"), 0);
    only_entry(name, "name/a");
    assert_is_now(name, false);
    assert_int_equal(strlen(name), 19);
    assert_int_equal(run(T "--save-path name/out --epochs 1 --logger csv --log-dir name/b "
                           "--run-name x_{utc_time}_r{rank}_{local_rank}_{rank}}{"),
                     0);
    only_entry(name, "name/b");
    assert_memory_equal(name, "x_", 2);
    assert_is_now(name + 2, true);
    assert_string_equal(name + 21, "+00:00_r3_0_3}{");
    assert_int_equal(run(T "--save-path name/out --epochs 1 --logger csv --log-dir name/c "
                           "--run-name deep/{rank}"),
                     0);
    assert_int_equal(access("name/c/deep/3/metrics.csv", F_OK), 0);
    unsetenv("RANK");
    unsetenv("TZ");
    tzset();
}

/* Into the folder of --save-path, which has a metrics.jsonl already: it is written once. */
static void test_same_folder(void **state)
{
    (void)state;
    assert_int_equal(run(T "--save-path same/x --epochs 1 --logger jsonl,csv --log-dir same "
                           "--run-name x"),
                     0);
    resume_at("0 20 20");
    assert_int_equal(run(T "--save-path same/x --epochs 1 --logger jsonl,csv --log-dir same "
                           "--run-name x"),
                     0);
    resume_at(NULL);
    json_t *records = load_records("same/x/metrics.jsonl");
    assert_int_equal(json_array_size(records), 41);
    json_decref(records);
    assert_int_equal(access("same/x/metrics.csv", F_OK), 0);
    /* And without loggers there are no logs. */
    assert_int_equal(run(T "--save-path same/y --epochs 1 --log-dir same/none --logger ''"), 0);
    assert_int_not_equal(access("same/none", F_OK), 0);
    assert_int_equal(run(T "--dry-run --logger csv --log-dir same/none"), 0);
    assert_int_not_equal(access("same/none", F_OK), 0);
}

/* Failures -------------------------------------------------------------------------------- */

static void test_full_disk(void **state)
{
    static const struct {
        const char *logger, *file;
    } cases[] = {{"csv", "full/run/metrics.csv"},
                 {"csv", "full/run/validation.csv"},
                 {"jsonl", "full/run/metrics.jsonl"}};
    char command[300], line[200];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(system("rm -rf full && mkdir -p full/run"), 0);
        assert_int_equal(symlink("/dev/full", cases[i].file), 0);
        snprintf(command, sizeof command,
                 T "--save-path full/out --epochs 1 --log-dir full --run-name run --logger %s",
                 cases[i].logger);
        assert_int_equal(run(command), 1);
        snprintf(line, sizeof line, "\naccrue: %s: No space left on device; no records from step ",
                 cases[i].file);
        assert_non_null(strstr(err, line));
    }
    assert_int_equal(run(T "--save-path full/out --epochs 1 --logger csv --log-dir "
                           "full/out/metrics.jsonl"),
                     1);
    assert_non_null(strstr(err, "accrue: full/out/metrics.jsonl/"));
    assert_non_null(strstr(err, ": Not a directory\n"));
    assert_int_equal(mkdir("full/dir", 0777) | mkdir("full/dir/validation.csv", 0777), 0);
    assert_int_equal(run(T "--save-path full/out --epochs 1 --logger csv --log-dir full "
                           "--run-name dir"),
                     1);
    assert_string_equal(err, "accrue: full/dir/validation.csv: Is a directory\n");
}

/* accrue plot reads event files of others too, whatever is in them. */
static void test_broken_events(void **state)
{
    static uint8_t golden[4096], bytes[4096];
    static const char path[] = "broken/events.out.tfevents.1.x.1.0";
    size_t n = load(golden, sizeof golden, ACR_TEST_DATA "/events.golden"), len = 0;
    int refused = 0;

    (void)state;
    assert_int_equal(system("rm -rf broken && mkdir broken"), 0);
    save(path, golden, n);
    assert_int_equal(run("plot broken --out broken/x.svg"), 0);
    assert_non_null(strstr(out, "\nbroken      2       1 "));
    save(path, golden, n - 5); /* torn: without the validation */
    assert_int_equal(run("plot broken --out broken/x.svg"), 0);
    assert_non_null(strstr(out, "\nbroken      2       1 "));
    assert_non_null(strstr(out, " -     -           -         -  "));

    memcpy(bytes, golden, n);
    bytes[3] = 1;
    save(path, bytes, n);
    assert_int_equal(run("plot broken --out broken/y.svg"), 2);
    assert_string_equal(err,
                        "accrue: broken/events.out.tfevents.1.x.1.0: record 1: the checksum of "
                        "its length is wrong\n");
    memcpy(bytes, golden, n);
    bytes[200] ^= 1;
    save(path, bytes, n);
    assert_int_equal(run("plot broken --out broken/y.svg"), 2);
    assert_string_equal(err,
                        "accrue: broken/events.out.tfevents.1.x.1.0: record 3: its checksum is "
                        "wrong\n");
    /* Wrong in the protobuf alone: taken for what it says, or refused with one line. */
    for (size_t at = 0; at < n; at += 16 + len) {
        len = (size_t)little(golden + at, 8);
        for (size_t i = 0; i < len && i < 64; i += 9) {
            memcpy(bytes, golden, n);
            bytes[at + 12 + i] ^= 0xff;
            uint32_t crc = masked(bytes + at + 12, len);
            for (int k = 0; k < 4; k++)
                bytes[at + 12 + len + (size_t)k] = (uint8_t)(crc >> 8 * k);
            save(path, bytes, n);
            int code = run("plot broken --out broken/y.svg");
            if (code && (code != 2 || count_lines(err) != 1))
                fail_msg("byte %zu of the record at %zu: exit %d: %s", i, at, code, err);
            refused += code == 2;
        }
    }
    assert_in_range(refused, 5, 40);
}

/* A file may grow to 4 KiB here, and metrics.jsonl does not grow at all. */
static void test_full_event_file(void **state)
{
    struct rlimit old, small;
    char file[400], line[500];

    (void)state;
    assert_int_equal(system("rm -rf limit && mkdir -p limit/out"), 0);
    assert_int_equal(symlink("/dev/null", "limit/out/metrics.jsonl"), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){4096, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int code = run(T "--save-path limit/out --epochs 1 --logger tensorboard --log-dir limit "
                     "--run-name r");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(code, 1);
    assert_int_equal(read_event_folder("limit/r", file), 1); /* torn at its end, whole before */
    assert_in_range(n_events, 3, 10);
    snprintf(line, sizeof line, "\naccrue: %s: File too large; no records from step ", file);
    assert_non_null(strstr(err, line));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensorboard),   cmocka_unit_test(test_golden_events),
        cmocka_unit_test(test_resume),        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_other_columns), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_run_names),     cmocka_unit_test(test_same_folder),
        cmocka_unit_test(test_full_disk),     cmocka_unit_test(test_full_event_file),
        cmocka_unit_test(test_broken_events),
    };

    if (system("rm -rf tb gold res whole csv cols c logs output name same full limit"))
        return 1;
    return cmocka_run_group_tests_name("loggers", tests, NULL, NULL);
}
