/* generate_test.h - the fixture of tests that let a small verifier answer: its folder, the file of
 * conversations, and the call. */
#ifndef TEST_GENERATE_TEST_H
#define TEST_GENERATE_TEST_H

#include "folder_test.h"

#include "infer/generate_parts.h"
#include "whole_verifier.h"

#include <math.h>

static char *verifier, *data, *output;

static const char conversations[] =
    "{\"id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}, {\"role\": "
    "\"assistant\", \"content\": \"old\"}]}\n"
    "{\"conversations\": [{\"from\": \"system\", \"value\": \"Be brief.\"}, {\"from\": \"human\", "
    "\"value\": \"One\"}, {\"from\": \"gpt\", \"value\": \"x\"}, {\"from\": \"human\", \"value\": "
    "\"Two\"}, {\"from\": \"gpt\", \"value\": \"y\"}, {\"from\": \"human\", \"value\": "
    "\"Three\"}]}\n"
    "\n"
    "{\"prompt\": \"A prompt alone.\"}\n"
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Nobody asks.\"}]}\n"
    "{\"id\": 7, \"messages\": [{\"role\": \"assistant\", \"content\": \"Hello!\"}, {\"role\": "
    "\"user\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"Look it up\"}, {\"role\": "
    "\"assistant\", \"content\": \"\"}, {\"role\": \"tool\", \"content\": \"42\"}, {\"role\": "
    "\"user\", \"content\": \"And?\"}]}\n"
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"\xc3\xa9\xe4\xb8\xad\"}], \"response\": "
    "\"old\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Last\"}]}\n";

enum { LINES = 7 };

static inline int prepare(void **state)
{
    make(state);
    verifier = acr_sprintf("%s/verifier", folder);
    data = acr_sprintf("%s/data.jsonl", folder);
    output = acr_sprintf("%s/out.jsonl", folder);
    shell(acr_sprintf("mkdir '%s'", verifier));
    write_whole_verifier(verifier, WHOLE_CHAT_VOCAB, 7);
    write_whole_chat(verifier, ACR_TEST_DATA, "plain");
    write_text(data, conversations);
    return 0;
}

static inline int finish(void **state)
{
    acr_free(verifier);
    acr_free(data);
    acr_free(output);
    return clear(state);
}

static inline accrue_generate_options options(void)
{
    accrue_generate_options o;

    accrue_generate_options_init(&o, sizeof o);
    o.verifier = verifier;
    o.data = data;
    o.output = output;
    o.max_new_tokens = 12;
    o.temperature = 1;
    o.top_p = 0.9;
    o.compute = ACCRUE_F32;
    return o;
}

static inline accrue_generate_report generate(const accrue_generate_options *o)
{
    accrue_generate_report r;
    accrue_error e = {0};

    assert_ok(accrue_generate(&r, o, NULL, NULL, &e), &e);
    return r;
}

static inline char *text_of_file(const char *path)
{
    acr_map map = {0};
    accrue_error e = {0};
    char *text = NULL;

    assert_ok(acr_map_open(&map, path, &e), &e);
    text = acr_calloc(map.bytes + 1, 1);
    assert_non_null(text);
    if (map.bytes)
        memcpy(text, map.data, map.bytes);
    acr_map_close(&map);
    return text;
}

static inline void forget_output(void)
{
    shell(acr_sprintf("rm -f '%s' '%s.settings.json'", output, output));
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, prepare, finish)

#endif
