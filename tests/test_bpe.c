/* test_bpe.c - merging long words equals a plain search for the lowest rank, over and over. */
#include "files.h"

#include "text/tokenizer_parts.h"

enum { LETTERS = 2, TOKENS = 62, MERGES = 2048, LONGEST = 160, WORDS = 400 };

static uint64_t next_draw;

static int draw(int n)
{
    return (int)(acr_random_u64(3, ACR_RANDOM_SHUFFLE, 1, next_draw++) % (uint64_t)n);
}

/* Tokens of up to 5 letters, each a merge of two before it, many in several ways; no rank twice, in
 * any order. */
static void make_vocabulary(acr_bpe *b)
{
    char texts[TOKENS][32] = {"a", "b"};
    int n = LETTERS;

    assert_int_equal(acr_bpe_reserve(b, TOKENS, TOKENS, NULL), ACCRUE_OK);
    assert_int_equal(acr_bpe_reserve_merges(b, MERGES, NULL), ACCRUE_OK);
    for (int i = 0; i < LETTERS; i++)
        assert_int_equal(acr_bpe_add(b, i, texts[i], 1, texts[i], 1, NULL), ACCRUE_OK);
    for (int k = 0; k < MERGES; k++) {
        const int left = draw(n), right = draw(n);
        char text[64] = {0};
        const size_t bytes = strlen(strcat(strcat(text, texts[left]), texts[right]));
        int id = acr_bpe_find(b, text, bytes);
        if (bytes > 5 || (id < 0 && n == TOKENS))
            continue;
        if (id < 0) {
            id = n++;
            memcpy(texts[id], text, bytes);
            assert_int_equal(acr_bpe_add(b, id, text, bytes, text, bytes, NULL), ACCRUE_OK);
        }
        acr_bpe_add_merge(b, left, right, (uint32_t)(k * 377 % MERGES), id);
    }
}

static const acr_merge *find_merge(const acr_bpe *b, int64_t left, int64_t right)
{
    for (size_t i = 0; i < b->n_merges; i++)
        if (b->merges[i].pair == ((uint64_t)left << 32 | (uint64_t)right))
            return &b->merges[i];
    return NULL;
}

static int merge_plainly(const acr_bpe *b, int64_t *ids, int n)
{
    for (;;) {
        const acr_merge *best = NULL;
        int place = 0;
        for (int i = 0; i + 1 < n; i++) {
            const acr_merge *m = find_merge(b, ids[i], ids[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                place = i;
            }
        }
        if (!best)
            return n;
        ids[place] = best->id;
        n--;
        memmove(ids + place + 1, ids + place + 2, (size_t)(n - place - 1) * sizeof *ids);
    }
}

static void merges_in_order_of_rank(void **state)
{
    acr_bpe b = {0};
    acr_bpe_room room = {0};
    acr_ids got = {0};
    int64_t ids[LONGEST];
    char word[LONGEST];

    (void)state;
    make_vocabulary(&b);
    for (int k = 0; k < WORDS; k++) {
        const int length = 1 + draw(LONGEST), letters = 1 + k % LETTERS;
        for (int i = 0; i < length; i++) {
            ids[i] = draw(letters);
            word[i] = (char)('a' + ids[i]);
        }
        got.n = 0;
        assert_int_equal(acr_bpe_encode(&got, &b, &room, word, (size_t)length, NULL), ACCRUE_OK);
        assert_int_equal(got.n, merge_plainly(&b, ids, length));
        for (int64_t i = 0; i < got.n; i++)
            assert_int_equal(got.at[i], ids[i]);
    }
    acr_ids_free(&got);
    acr_bpe_room_free(&room);
    acr_bpe_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_in_order_of_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
