/* whole_verifier.h - a small llama with random weights in a folder, whole and with a chat's
 * tokenizer, for tests of what only a verifier that runs can do. */
#ifndef TEST_WHOLE_VERIFIER_H
#define TEST_WHOLE_VERIFIER_H

#include "data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_HIDDEN = 32, WHOLE_LAYERS = 8, WHOLE_INNER = 64, WHOLE_HEADS = 4, WHOLE_KV = 2 };

static const char whole_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"dtype\": "
    "\"bfloat16\", \"head_dim\": 8, \"hidden_act\": \"silu\", \"hidden_size\": 32, "
    "\"intermediate_size\": 64, \"max_position_embeddings\": 512, \"model_type\": \"llama\", "
    "\"num_attention_heads\": 4, \"num_hidden_layers\": 8, \"num_key_value_heads\": 2, "
    "\"rms_norm_eps\": 1e-05, \"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": "
    "\"default\"}, \"tie_word_embeddings\": false, \"eos_token_id\": 2, \"vocab_size\": %d}\n";

typedef struct whole_tensors {
    acr_tensor list[16 + 9 * WHOLE_LAYERS];
    int n;
    uint64_t seed;
} whole_tensors;

/* Takes over `name`. */
static inline void whole_add(whole_tensors *w, char *name, int64_t rows, int64_t cols, double mean,
                             double scale)
{
    const int64_t n = rows * (cols ? cols : 1);
    uint16_t *data = acr_malloc((size_t)n * sizeof *data);

    if (!name || !data)
        abort();
    for (int64_t i = 0; i < n; i++)
        data[i] = acr_bf16_from_f32(
            (float)(mean + scale * acr_random_normal(w->seed, ACR_RANDOM_INIT,
                                                     acr_hash_string(name), (uint64_t)i)));
    w->list[w->n++] = (acr_tensor){.name = name,
                                   .dtype = ACR_DTYPE_BF16,
                                   .n_dims = cols ? 2 : 1,
                                   .dims = {rows, cols},
                                   .data = data,
                                   .bytes = (size_t)n * sizeof *data};
}

static inline void whole_add_layer(whole_tensors *w, int i)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } matrices[] = {
        {"self_attn.q_proj", WHOLE_HIDDEN, WHOLE_HIDDEN},
        {"self_attn.k_proj", 8 * WHOLE_KV, WHOLE_HIDDEN},
        {"self_attn.v_proj", 8 * WHOLE_KV, WHOLE_HIDDEN},
        {"self_attn.o_proj", WHOLE_HIDDEN, 8 * WHOLE_HEADS},
        {"mlp.gate_proj", WHOLE_INNER, WHOLE_HIDDEN},
        {"mlp.up_proj", WHOLE_INNER, WHOLE_HIDDEN},
        {"mlp.down_proj", WHOLE_HIDDEN, WHOLE_INNER},
    };

    for (int k = 0; k < ACR_COUNT(matrices); k++)
        whole_add(w, acr_sprintf("model.layers.%d.%s.weight", i, matrices[k].name),
                  matrices[k].rows, matrices[k].cols, 0, w->seed ? 0.2 : 1e37);
    whole_add(w, acr_sprintf("model.layers.%d.input_layernorm.weight", i), WHOLE_HIDDEN, 0, 1, 0.1);
    whole_add(w, acr_sprintf("model.layers.%d.post_attention_layernorm.weight", i), WHOLE_HIDDEN, 0,
              1, 0.1);
}

/* Into the folder `dir`, which is there: config.json and weights.  `seed` 0 makes one
 * whose states overflow. */
static inline void write_whole_verifier(const char *dir, int vocab, uint64_t seed)
{
    whole_tensors w = {.seed = seed};
    char *path = acr_sprintf("%s/model.safetensors", dir);
    char *config_path = acr_sprintf("%s/config.json", dir);
    char *config = acr_sprintf(whole_config, vocab);

    whole_add(&w, acr_strdup("lm_head.weight"), vocab, WHOLE_HIDDEN, 0, 0.7);
    whole_add(&w, acr_strdup("model.embed_tokens.weight"), vocab, WHOLE_HIDDEN, 0, 1);
    whole_add(&w, acr_strdup("model.norm.weight"), WHOLE_HIDDEN, 0, 1, 0.1);
    for (int i = 0; i < WHOLE_LAYERS; i++)
        whole_add_layer(&w, i);
    if (!path || !config_path || !config ||
        acr_safetensors_write(path, w.list, w.n, NULL, NULL, NULL) ||
        acr_write_file(config_path, config, strlen(config), NULL))
        abort();
    for (int i = 0; i < w.n; i++) {
        acr_free((void *)(uintptr_t)w.list[i].name);
        acr_free((void *)(uintptr_t)w.list[i].data);
    }
    acr_free(path);
    acr_free(config_path);
    acr_free(config);
}

/* The tokenizer of tests/data/chat (397 ids) and a template of its, under their names. */
static inline void write_whole_chat(const char *dir, const char *data, const char *template)
{
    char *command =
        acr_sprintf("cp '%s/chat/tokenizer.json' '%s/chat/tokenizer_config.json' '%s' && "
                    "chmod u+w '%s'/*",
                    data, data, dir, dir);
    char *from = acr_sprintf("%s/chat/templates.json", data);
    char *to = acr_sprintf("%s/chat_template.jinja", dir);
    const char *text = NULL;
    json_t *all = NULL;

    if (!command || !from || !to || system(command) != 0 ||
        acr_json_load(&all, from, 1 << 20, NULL))
        abort();
    text = json_string_value(json_object_get(all, template));
    if (!text || acr_write_file(to, text, strlen(text), NULL))
        abort();
    json_decref(all);
    acr_free(command);
    acr_free(from);
    acr_free(to);
}

enum { WHOLE_CHAT_VOCAB = 397 };

#endif
