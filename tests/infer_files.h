/* infer_files.h - random verifiers as folders, and drafts for them. */
#ifndef INFER_FILES_H
#define INFER_FILES_H

#include "draft_files.h"
#include "infer/infer.h"

enum { V_HIDDEN = 16, V_VOCAB = 48, V_LAYERS = 6, V_EOS = 47, V_POSITIONS = 1024 };
enum { BYTES = 256, IM_START = 256, IM_END = 257 }; /* of the tokenizer */

static inline void verifier_layer(draft_files *f, int l, acr_dtype type)
{
    static const struct {
        const char *name;
        int n_dims;
        int64_t rows, cols;
    } parts[] = {{"input_layernorm", 1, V_HIDDEN, 1},   {"self_attn.q_proj", 2, 32, V_HIDDEN},
                 {"self_attn.k_proj", 2, 16, V_HIDDEN}, {"self_attn.v_proj", 2, 16, V_HIDDEN},
                 {"self_attn.o_proj", 2, V_HIDDEN, 32}, {"post_attention_layernorm", 1, 16, 1},
                 {"mlp.gate_proj", 2, 24, V_HIDDEN},    {"mlp.up_proj", 2, 24, V_HIDDEN},
                 {"mlp.down_proj", 2, V_HIDDEN, 24}};

    for (int i = 0; i < ACR_COUNT(parts); i++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, parts[i].name);
        draft_add(f, name, type, parts[i].n_dims, parts[i].rows, parts[i].cols);
    }
}

/* A llama of V_LAYERS layers; `vocab` ids of which `eos` ends an answer. */
static inline void verifier_write(const char *dir, int64_t vocab, int64_t eos, uint64_t seed)
{
    draft_files f = {.n = 0};
    char *config = acr_sprintf(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": "
        "\"silu\", \"hidden_size\": %d, \"intermediate_size\": 24, \"vocab_size\": %lld, "
        "\"num_hidden_layers\": %d, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"head_dim\": 8, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, "
        "\"max_position_embeddings\": %d, \"tie_word_embeddings\": false, \"eos_token_id\": %lld}",
        V_HIDDEN, (long long)vocab, V_LAYERS, V_POSITIONS, (long long)eos);
    accrue_error e = {0};

    assert_non_null(config);
    assert_ok(acr_json_parse(&f.config.json, config, strlen(config), "config", &e), &e);
    draft_add(&f, "lm_head.weight", ACR_DTYPE_F32, 2, vocab, V_HIDDEN);
    draft_add(&f, "model.embed_tokens.weight", ACR_DTYPE_F32, 2, vocab, V_HIDDEN);
    for (int l = 0; l < V_LAYERS; l++)
        verifier_layer(&f, l, ACR_DTYPE_F32);
    draft_add(&f, "model.norm.weight", ACR_DTYPE_F32, 1, V_HIDDEN, 1);
    draft_fill(&f, seed, 0.35);
    draft_files_write(&f, dir);
    draft_files_free(&f);
    acr_free(config);
}

/* A draft for it with this many layers, in the folder `dir`. */
static inline void draft_make_for(draft_files *f, int64_t vocab, int64_t draft_vocab, int layers,
                                  bool norm_output, const char *verifier, uint64_t seed)
{
    char types[256] = "";
    char *config = NULL;

    for (int i = 0; i < layers; i++)
        snprintf(types + strlen(types), sizeof types - strlen(types), "%s\"%s_attention\"",
                 i ? ", " : "", i ? "full" : "sliding");
    config = acr_sprintf(
        "{\"speculators_model_type\": \"eagle3\", \"draft_vocab_size\": %lld, "
        "\"eagle_aux_hidden_state_layer_ids\": [2, 3, 5], \"norm_before_residual\": true, "
        "\"norm_before_fc\": true, \"norm_output\": %s, \"speculators_config\": {\"verifier\": "
        "{\"name_or_path\": \"%s\"}}, \"transformer_layer_config\": {\"model_type\": \"llama\", "
        "\"hidden_size\": %d, \"intermediate_size\": 20, \"vocab_size\": %lld, "
        "\"num_hidden_layers\": %d, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
        "\"head_dim\": 8, \"rms_norm_eps\": 1e-5, \"sliding_window\": 9, \"layer_types\": [%s]}}",
        (long long)draft_vocab, norm_output ? "true" : "false", verifier, V_HIDDEN,
        (long long)vocab, layers, types);
    assert_non_null(config);
    draft_files_make(f, config, ACR_DTYPE_F32, seed, 0.3);
    if (draft_vocab < vocab)
        draft_files_map(f, 2);
    acr_free(config);
}

static inline void draft_write_for(const char *dir, int64_t vocab, int64_t draft_vocab, int layers,
                                   bool norm_output, const char *verifier, uint64_t seed)
{
    draft_files f;

    draft_make_for(&f, vocab, draft_vocab, layers, norm_output, verifier, seed);
    draft_files_write(&f, dir);
    draft_files_free(&f);
}

/* Text ------------------------------------------------------------------------------------- */

static inline char *path_below(const char *dir, const char *name)
{
    char *path = acr_sprintf("%s/%s", dir, name);

    assert_non_null(path);
    return path;
}

static inline void write_in(const char *dir, const char *name, const char *text)
{
    char *path = path_below(dir, name);

    write_text(path, text);
    acr_free(path);
}

/* A byte's character in byte-level vocabularies. */
static inline int character_of(int byte)
{
    int above = 256;

    for (int b = 0; b < 256; b++) {
        const bool shown = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        if (b == byte)
            return shown ? b : above;
        above += !shown;
    }
    return 0;
}

/* Every byte a token, and the two around a message. */
static inline void tokenizer_write(const char *dir)
{
    json_t *vocab = json_object(), *added = json_array();
    json_t *root = NULL;
    char *text = NULL;

    for (int b = 0; b < BYTES; b++) {
        const int c = character_of(b);
        char s[3] = {(char)c, 0, 0};
        if (c >= 128) {
            s[0] = (char)(0xc0 | c >> 6);
            s[1] = (char)(0x80 | (c & 63));
        }
        json_object_set_new(vocab, s, json_integer(b));
    }
    for (int i = 0; i < 2; i++)
        json_array_append_new(
            added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", IM_START + i, "content",
                             i ? "<|im_end|>" : "<|im_start|>", "single_word", 0, "lstrip", 0,
                             "rstrip", 0, "normalized", 0, "special", 1));
    root = json_pack("{s:s, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b}, "
                     "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:[]}}",
                     "version", "1.0", "added_tokens", added, "normalizer", "pre_tokenizer", "type",
                     "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1,
                     "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout",
                     "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                     "byte_fallback", 0, "vocab", vocab, "merges");
    assert_non_null(root);
    text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    write_in(dir, "tokenizer.json", text);
    free(text);
    json_decref(root);
    write_in(dir, "chat_template.jinja",
             "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
             "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt "
             "%}{{ '<|im_start|>assistant\\n' }}{% endif %}");
    write_in(dir, "tokenizer_config.json", "{}");
}

#endif
