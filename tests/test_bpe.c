/* test_bpe.c - merging long words equals a plain search for the lowest rank, over and over. */
#include "files.h"

#include "text/tokenizer_parts.h"

enum { LETTERS = 3, TOKENS = 60, LONGEST = 160, WORDS = 400 };

static uint64_t next_draw;

static int draw(int n)
{
    return (int)(acr_random_u64(3, ACR_RANDOM_SHUFFLE, 1, next_draw++) % (uint64_t)n);
}

/* Tokens of up to 12 letters, each a merge of two before it; ranks in any order. */
static void make_vocabulary(acr_bpe *b)
{
    char texts[TOKENS][32] = {"a", "b", "c"};

    assert_int_equal(acr_bpe_reserve(b, TOKENS, TOKENS, NULL), ACCRUE_OK);
    assert_int_equal(acr_bpe_reserve_merges(b, TOKENS, NULL), ACCRUE_OK);
    for (int i = 0; i < TOKENS;) {
        const int left = draw(i + 1), right = draw(i + 1);
        if (i >= LETTERS) {
            if (left == i || right == i || strlen(texts[left]) + strlen(texts[right]) > 12)
                continue;
            snprintf(texts[i], sizeof texts[i], "%.15s%.15s", texts[left], texts[right]);
            if (acr_bpe_find(b, texts[i], strlen(texts[i])) >= 0)
                continue;
            acr_bpe_add_merge(b, left, right, (uint32_t)(i * 37 % 64), i);
        }
        assert_int_equal(
            acr_bpe_add(b, i, texts[i], strlen(texts[i]), texts[i], strlen(texts[i]), NULL),
            ACCRUE_OK);
        i++;
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
