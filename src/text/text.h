/* text.h - between text and token ids: byte-level BPE tokenizers, and chat formats. */
#ifndef ACR_TEXT_H
#define ACR_TEXT_H

#include "base/base.h"

/* Tokenizer -------------------------------------------------------------------------------- */

/* A byte-level BPE tokenizer as Hugging Face's tokenizer.json describes one (Sennrich et al. 2016,
 * on bytes as in Radford et al. 2019): the ids of `tokenizers`' encode with add_special_tokens
 * false, and its decode. */
typedef struct acr_tokenizer acr_tokenizer;

/* Reads DIR/tokenizer.json; ACR_MAX_TOKENIZER bytes at most, nesting and values bounded.  What it
 * asks for and this does not do is refused by name. */
enum { ACR_MAX_TOKENIZER = 100 << 20 };
accrue_status acr_tokenizer_open(acr_tokenizer **out, const char *dir, accrue_error *err);
/* The same of a file's text; `name` begins the messages. */
accrue_status acr_tokenizer_parse(acr_tokenizer **out, const char *text, size_t bytes,
                                  const char *name, accrue_error *err);
/* The same of the file's object (borrowed). */
accrue_status acr_tokenizer_create(acr_tokenizer **out, const json_t *json, const char *name,
                                   accrue_error *err);
void acr_tokenizer_free(acr_tokenizer *t);                /* accepts NULL */
int64_t acr_tokenizer_vocab_size(const acr_tokenizer *t); /* highest id + 1 */
/* The id of a token as the vocabulary or the added tokens spell it; -1: none. */
int64_t acr_tokenizer_id(const acr_tokenizer *t, const char *token);
/* The token that the post-processor puts before every text (encode does not); -1: none. */
int64_t acr_tokenizer_bos(const acr_tokenizer *t);

/* A growing list of ids; { 0 } is an empty one. */
typedef struct acr_ids {
    int64_t *at;
    int64_t n, capacity;
} acr_ids;
accrue_status acr_ids_add(acr_ids *ids, int64_t id, accrue_error *err);
void acr_ids_free(acr_ids *ids);

/* Appends the ids of `bytes` of UTF-8; any number of threads may at a time.  EFORMAT, with the
 * byte's place, for text that is not; `out` then is as it was.  Added tokens that stand in the text
 * become their ids; without `special` only those that are not special: the others are text like any
 * other then (what a user wrote must not act as a control token), as with `tokenizers`'
 * encode_special_tokens.  A byte without a token, where the file names none for it, is left out. */
accrue_status acr_tokenizer_encode(acr_ids *out, const acr_tokenizer *t, const char *text,
                                   size_t bytes, bool special, accrue_error *err);
/* The text of ids, NUL-terminated, freed with acr_free; bytes that are no UTF-8 become U+FFFD, and
 * ids that have no token nothing, as `tokenizers` does.  With `skip_special`, special tokens are
 * left out.  EINVAL for a negative id. */
accrue_status acr_tokenizer_decode(char **out, size_t *bytes, const acr_tokenizer *t,
                                   const int64_t *ids, int64_t n, bool skip_special,
                                   accrue_error *err);

/* Chat ------------------------------------------------------------------------------------- */

typedef enum acr_chat_format { ACR_CHAT_CHATML = 1, ACR_CHAT_LLAMA3 = 2 } acr_chat_format;

typedef struct acr_message {
    const char *role, *content; /* borrowed; "system", "user", "assistant", "tool" */
    const char *reasoning;      /* what the assistant thought before, apart; NULL: not given */
} acr_message;

/* The format of a model's folder, told from its chat template (chat_template.jinja, or that of
 * tokenizer_config.json) and its special tokens; ENOTSUP for another, and for one whose text
 * depends on the day. */
typedef struct acr_chat {
    acr_chat_format format;
    char *default_system; /* put before a conversation that has none; NULL: nothing is */
    char *preface;        /* of llama-3.1: begins the system message, which there always is */
    bool thinks;          /* of Qwen3: the last answers carry <think> </think>, earlier ones none */
    bool any_role;        /* a tool's message looks like any other; else it is refused */
    int64_t bos;          /* -1: none */
    int64_t begin, end;   /* the tokens around a message: <|im_start|> and <|im_end|>; */
    int64_t header_end;   /* <|start_header_id|>, <|eot_id|>, and <|end_header_id|>; else -1 */
    int64_t think, think_end; /* -1 where it does not think */
} acr_chat;
accrue_status acr_chat_open(acr_chat *out, const char *dir, const acr_tokenizer *t,
                            accrue_error *err);
/* The same of a template's text. */
accrue_status acr_chat_create(acr_chat *out, const char *template, size_t bytes, const char *name,
                              int64_t bos, const acr_tokenizer *t, accrue_error *err);
void acr_chat_free(acr_chat *c);

/* Appends a conversation's ids and, one for each, whether it is the assistant's (`mask`, may be
 * NULL): what the assistant has to say, its closing token and the line's end behind that included,
 * and no header; of a first message, nothing.  With `generation_prompt` the header of an answer
 * follows, unmasked.
 *
 * The ids are those of transformers' apply_chat_template, with one difference on purpose: a message
 * that spells a control token ("<|im_end|>") has that as text, where transformers would make it
 * the token.  EMISMATCH for a message that the template has another form for (a tool's), or
 * none. */
accrue_status acr_chat_encode(acr_ids *ids, acr_ids *mask, const acr_chat *c,
                              const acr_tokenizer *t, const acr_message *messages, int n,
                              bool generation_prompt, accrue_error *err);

/* Conversations ---------------------------------------------------------------------------- */

/* A mapped file of lines; a byte order mark is no part of the first. */
typedef struct acr_lines {
    const char *path; /* borrowed */
    acr_map map;
    int64_t n, capacity;
    struct acr_line {
        int64_t offset, number; /* number: 1-based, of the line in its file */
    } * at;                     /* those that are not blank */
    uint64_t hash;              /* of the whole file */
} acr_lines;
accrue_status acr_lines_open(acr_lines *out, const char *path, accrue_error *err);
void acr_lines_close(acr_lines *l);
/* Without the line's end. */
const char *acr_lines_text(const acr_lines *l, int64_t i, size_t *bytes);
/* A line's value, the caller's reference; 256 MB at most.  `name` begins the messages. */
accrue_status acr_line_parse(json_t **out, const char *text, size_t bytes, const char *name,
                             accrue_error *err);

/* What was said, in the forms that speculators reads: "conversations" or "messages" (role and
 * content, or from and value), or "prompt" (a text, or such a list) with "completion" or "response"
 * beside it. */
typedef struct acr_conversation {
    acr_message *messages; /* [n]; strings are the row's object's; NULL: it is of no such form */
    int n;
    int calls_tool;        /* the first message that does; -1: none */
    bool has_tools;        /* the row lists some */
    int64_t unknown_roles; /* messages of a role that is none, taken for the assistant's */
    char unknown_role[64]; /* the first one's */
} acr_conversation;
accrue_status acr_conversation_read(acr_conversation *out, const json_t *row, const char *name,
                                    accrue_error *err);
void acr_conversation_free(acr_conversation *c);

#endif
