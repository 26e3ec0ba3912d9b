/* Token files: bare and with the headers of llm.c, how they are cut into samples, and every token
 * or size that cannot be right. */
#include "tests/unit/trainer_data.h"

#include "base/buf.h"
#include "trainer/data_parts.h"

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY

static const uint64_t counting[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static void add_tokens(struct buf *b, int width, const uint64_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < width; k++) {
            unsigned char byte = (unsigned char)(tokens[i] >> 8 * k);
            buf_add(b, &byte, 1);
        }
}

static void add_header(struct buf *b, uint32_t magic, uint32_t version, uint32_t count)
{
    unsigned char rest[1012] = {0};
    uint64_t words[] = {magic, version, count};
    add_tokens(b, 4, words, 3);
    buf_add(b, rest, sizeof rest);
}

static void put_tokens(int width, const uint64_t *tokens, size_t n)
{
    struct buf b = BUF_INIT;
    add_tokens(&b, width, tokens, n);
    put("t.bin", b.data ? b.data : "", b.len);
    buf_done(&b);
}

/* Windows of `length` tokens of a vocabulary of `classes`. */
static struct job_spec tokens_job(enum token_type dtype, int64_t length, int64_t classes)
{
    static char path[] = "t.bin";
    struct job_spec job = make_job(SPARSE, length, length * classes);
    job.model.layers[0].type = LAYER_EMBEDDING;
    job.model.layers[0].vocabulary = classes;
    job.model.layers[0].out = (struct shape){2, {length, classes}};
    job.train = (struct data_source){.format = DATA_TOKENS, .path = path, .dtype = dtype};
    return job;
}

static void check_counting(const struct prepared *p, int64_t samples)
{
    if (p->train.samples != samples)
        fail_msg("%ld samples", (long)p->train.samples);
    assert_int_equal(p->train.positions, 3);
    for (int64_t j = 0; j < samples; j++)
        for (int64_t i = 0; i < 3; i++) {
            assert_true(value_at(&p->train, j, i) == (double)(1 + 3 * j + i));
            assert_int_equal(class_at(&p->train, j, i), 2 + 3 * j + i);
        }
}

static void bare_tokens(void **state)
{
    (void)state;
    static const struct {
        enum token_type dtype;
        int width;
        const char *note;
    } CASES[] = {{TOKEN_U8, 1,
                  "t.bin: 3 samples of 3 tokens (uint8), the last 1 tokens are too few "
                  "for another"},
                 {TOKEN_U16, 2, "(uint16)"},
                 {TOKEN_U32, 4, "(uint32)"}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        put_tokens(CASES[i].width, counting, 11);
        struct job_spec job = tokens_job(CASES[i].dtype, 3, 12);
        struct prepared p = prepared(&job);
        check_counting(&p, 3);
        if (!strstr(p.note, CASES[i].note))
            fail_msg("%s", p.note);
        data_unmap(&p);
        struct buf b = BUF_INIT;
        add_tokens(&b, CASES[i].width, counting, 11);
        put_packed("t.bin", b.data, b.len);
        buf_done(&b);
        p = prepared(&job);
        check_counting(&p, 3);
        data_unmap(&p);
    }
}

/* n tokens make (n - 1) / T samples: the last label is one token further. */
static void how_many_samples(void **state)
{
    (void)state;
    static const int64_t SAMPLES[][2] = {{4, 1}, {6, 1}, {7, 2}, {9, 2}, {10, 3}};
    for (size_t i = 0; i < ARRAY_LEN(SAMPLES); i++) {
        put_tokens(1, counting, (size_t)SAMPLES[i][0]);
        struct job_spec job = tokens_job(TOKEN_U8, 3, 12);
        struct prepared p = prepared(&job);
        check_counting(&p, SAMPLES[i][1]);
        assert_int_equal(strstr(p.note, "too few") != NULL, SAMPLES[i][0] % 3 != 1);
        data_unmap(&p);
    }
    put_tokens(1, counting, 3);
    struct job_spec job = tokens_job(TOKEN_U8, 3, 12);
    refused(&job, ERR_INVALID,
            "t.bin has 3 tokens, where a sample takes 3 and the one that follows");
}

static void headers_of_llm_c(void **state)
{
    (void)state;
    static const struct {
        uint32_t magic, version;
        int width;
        enum token_type dtype;
    } CASES[] = {{20240520, 1, 2, TOKEN_AUTO},
                 {20240520, 1, 2, TOKEN_U16},
                 {20240801, 7, 4, TOKEN_AUTO},
                 {20240801, 7, 4, TOKEN_U32}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct buf b = BUF_INIT;
        add_header(&b, CASES[i].magic, CASES[i].version, 11);
        add_tokens(&b, CASES[i].width, counting, 11);
        struct job_spec job = tokens_job(CASES[i].dtype, 3, 12);
        put("t.bin", b.data, b.len);
        struct prepared p = prepared(&job);
        check_counting(&p, 3);
        data_unmap(&p);
        put_packed("t.bin", b.data, b.len);
        p = prepared(&job);
        check_counting(&p, 3);
        data_unmap(&p);
        job.train.limit = 2;
        p = prepared(&job);
        check_counting(&p, 2);
        data_unmap(&p);
        put("t.bin", b.data, b.len - 1);
        refused(&job, ERR_INVALID, "its header promises");
        put_packed("t.bin", b.data, b.len - 1);
        job.train.limit = 0;
        refused(&job, ERR_INVALID, "t.bin ends in the middle of its token 10");
        put_packed("t.bin", b.data, b.len - (size_t)CASES[i].width);
        refused(&job, ERR_INVALID, "t.bin ends after 10 tokens: 1 more were to come");
        buf_adds(&b, "more");
        put_packed("t.bin", b.data, b.len);
        refused(&job, ERR_INVALID, "t.bin goes on after");
        buf_done(&b);
    }
}

static void headers_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        uint32_t magic, version, count;
        enum token_type dtype;
        const char *words;
    } CASES[] = {
        {20240520, 1, 11, TOKEN_U32,
         "t.bin has a header of llm.c that says uint16, which is not the job's \"dtype\""},
        {20240801, 7, 11, TOKEN_U8, "says uint32, which is not the job's \"dtype\""},
        {20240520, 2, 11, TOKEN_AUTO,
         "t.bin has a header of llm.c of version 2; version 1 can be read"},
        {20240801, 1, 11, TOKEN_AUTO, "of version 1; version 7 can be read"},
        {20240520, 1, 12, TOKEN_AUTO,
         "t.bin: its header promises 24 bytes of data, but 22 bytes follow it"},
        {20240520, 1, 0x80000000, TOKEN_AUTO, "promises 2147483648 tokens, over 2^31"},
        {20240522, 1, 11, TOKEN_AUTO, "t.bin is an evaluation set of llm.c"},
        {7, 1, 11, TOKEN_AUTO,
         "t.bin has no header of llm.c, so the job must say what its tokens are: \"dtype\": "
         "\"uint8\", \"uint16\" or \"uint32\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct buf b = BUF_INIT;
        add_header(&b, CASES[i].magic, CASES[i].version, CASES[i].count);
        add_tokens(&b, 2, counting, 11);
        put("t.bin", b.data, b.len);
        buf_done(&b);
        struct job_spec job = tokens_job(CASES[i].dtype, 3, 12);
        refused(&job, ERR_INVALID, CASES[i].words);
    }
    put("t.bin", "", 0);
    struct job_spec job = tokens_job(TOKEN_AUTO, 3, 12);
    refused(&job, ERR_INVALID, "t.bin is empty");
    put("t.bin", "1234567", 7);
    job = tokens_job(TOKEN_U16, 3, 12);
    refused(&job, ERR_INVALID, "t.bin has 7 bytes, which is no whole number of tokens of 2 bytes");
    put_packed("t.bin", "1\0002\0003\0004", 7);
    job = tokens_job(TOKEN_U16, 3, 256);
    refused(&job, ERR_INVALID, "t.bin ends in the middle of its token 3");
}

static void tokens_beyond_the_vocabulary(void **state)
{
    (void)state;
    size_t n = 20000;
    uint64_t *tokens = mem_zalloc(n * sizeof *tokens);
    tokens[n - 1] = 12;
    put_tokens(2, tokens, n);
    struct job_spec job = tokens_job(TOKEN_U16, 3, 12);
    refused(&job, ERR_INVALID,
            "t.bin: token 12 at position 19999 is not below 12, the number of classes that the "
            "model's last layer has");
    job.model.layers[0].vocabulary = 11;
    tokens[17000] = 11;
    put_tokens(2, tokens, n);
    refused(&job, ERR_INVALID,
            "t.bin: token 11 at position 17000 is not below 11, the vocabulary of the embedding");
    job.train.limit = 5; /* what is not used is not looked at */
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 5);
    assert_null(strstr(p.note, "too few"));
    data_unmap(&p);
    free(tokens);
    put_tokens(4, (const uint64_t[]){1, 2, 3, UINT32_MAX}, 4);
    job = tokens_job(TOKEN_U32, 3, 12);
    refused(&job, ERR_INVALID, "t.bin: token 4294967295 at position 3 is not below 12");
    put_tokens(1, counting, 11);
    job = tokens_job(TOKEN_U8, 3, 256); /* every byte will do */
    p = prepared(&job);
    check_counting(&p, 3);
    data_unmap(&p);
}

static void models_that_take_no_tokens(void **state)
{
    (void)state;
    put_tokens(1, counting, 11);
    struct job_spec job = tokens_job(TOKEN_U8, 3, 12);
    job.model.layers[0].out = (struct shape){1, {12}};
    refused(&job, ERR_INVALID,
            "tokens give each position of the input [3] the next token as its label, but the "
            "model's output is [12] and its loss sparse_categorical_crossentropy");
    job.model.layers[0].out = (struct shape){2, {3, 12}};
    job.loss = LOSS_MEAN_SQUARED_ERROR;
    refused(&job, ERR_INVALID, "and its loss mean_squared_error");
}

static void the_last_part_validates(void **state)
{
    (void)state;
    put_tokens(2, counting, 11);
    struct job_spec job = tokens_job(TOKEN_U16, 2, 12);
    job.fit.validation_split = 0.4;
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 3);
    assert_int_equal(p.validation.samples, 2);
    assert_true(value_at(&p.validation, 0, 0) == 7);
    assert_int_equal(class_at(&p.validation, 1, 1), 11);
    data_unmap(&p);
}

static void one_hot_rows_of_tokens(void **state)
{
    (void)state;
    put_tokens(1, counting, 7);
    struct job_spec job = tokens_job(TOKEN_U8, 3, 12);
    job.loss = LOSS_CATEGORICAL_CROSSENTROPY;
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.target_size, 36);
    for (int i = 0; i < 36; i++)
        assert_true(target_at(&p.train, 1, i) == (i == 5 || i == 12 + 6 || i == 24 + 7));
    data_unmap(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bare_tokens),
        cmocka_unit_test(how_many_samples),
        cmocka_unit_test(headers_of_llm_c),
        cmocka_unit_test(headers_that_do_not_fit),
        cmocka_unit_test(tokens_beyond_the_vocabulary),
        cmocka_unit_test(models_that_take_no_tokens),
        cmocka_unit_test(the_last_part_validates),
        cmocka_unit_test(one_hot_rows_of_tokens),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
