/* What the ranks of one mesh save, the ranks of any other can take. No processes: each rank is a
 * layout with arenas, and its data group only a size and a number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/pieces.h"

/* Large enough for more than one bucket and for an update that is divided. */
#define MODEL                                                                                      \
    "{\"input\": [7], \"layers\": [{\"type\": \"dense\", \"units\": 130},"                         \
    "{\"type\": \"dense\", \"units\": 901}, {\"type\": \"layer_normalization\"},"                  \
    "{\"type\": \"dense\", \"units\": 1301}, {\"type\": \"dense\", \"units\": 3}]}"

struct shape3 {
    int data, pipeline, tensor, zero;
};

struct rank {
    struct engine g;
    struct plan plan;
    struct comm world;
};

static void *given[16];
static int given_count;

static int plain_memory(struct comm *world, size_t bytes, void **ret, struct err *e)
{
    (void)world;
    (void)e;
    *ret = given[given_count++] = mem_aligned(bytes);
    return 0;
}

static int all_gather(struct comm *c, void *buf, size_t count, enum comm_type type, struct err *e)
{
    (void)c;
    (void)buf;
    (void)count;
    (void)type;
    (void)e;
    return 0;
}

static const struct comm_verbs VERBS = {.memory = plain_memory, .all_gather = all_gather};

static struct job_spec job;

static int setup(void **state)
{
    (void)state;
    struct faults f;
    faults_init(&f);
    job = (struct job_spec){.loss = LOSS_MEAN_SQUARED_ERROR, .optimizer = {.kind = OPTIMIZER_ADAM}};
    json_auto_t *doc = json_loads(MODEL, 0, NULL);
    assert_int_equal(model_parse(doc, "/model", &job.model, &f), 0);
    faults_done(&f);
    job.model.layers[2].tensors[1].is_fixed = 1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_done(&job.model);
    return 0;
}

/* Matrices are cut along `axis` for tensor rank t of T, the last one padded. */
static void split(struct net_tensor *x, int axis, int t, int of)
{
    int64_t size = x->spec->shape.size[axis], each = (size + of - 1) / of;
    x->part.axis = axis;
    x->part.begin = t * each < size ? t * each : size - 1;
    x->part.end = (t + 1) * each < size ? (t + 1) * each : size;
    x->part.extent = each;
    x->elements = x->elements / (size_t)size * (size_t)each;
}

static struct rank *open_rank(const struct shape3 *m, int d, int p, int t, int axis)
{
    struct err e;
    struct rank *r = mem_zalloc(sizeof *r);
    struct net *n = &r->g.stage.net;
    int count = job.model.layer_count, first = count * p / m->pipeline,
        last = count * (p + 1) / m->pipeline;
    struct net_chunk chunk = {first, last};
    r->world = (struct comm){.verbs = &VERBS, .rank = d, .size = m->data};
    r->plan = (struct plan){.data = m->data, .zero = m->zero, .microbatches = 1, .chunks = 1};
    struct mesh mesh = {.data_rank = d,
                        .data = m->data,
                        .world = &r->world,
                        .replicas = m->data > 1 ? &r->world : NULL};
    assert_int_equal(net_init(n, &job, &ops_cpu, &chunk, 1, 1, 0, &e), 0);
    for (int i = 0; m->tensor > 1 && i < n->tensor_count; i++)
        if (n->tensors[i].spec->shape.dims == 2)
            split(&n->tensors[i], axis, t, m->tensor);
    replicas_init(&r->g.replicas, &job, &r->plan, n, &mesh);
    assert_int_equal(replicas_open(&r->g.replicas, &mesh, &e), 0);
    return r;
}

static void close_rank(struct rank *r)
{
    replicas_done(&r->g.replicas);
    net_done(&r->g.stage.net);
    free(r->g.arrived);
    free(r);
    while (given_count > 0)
        free(given[--given_count]);
}

/* The value of an element of a whole tensor. */
static float value(enum piece_kind k, uint64_t number, int64_t whole)
{
    return (float)(1 + (int)k * 100 + (int)number * 10) + (float)whole * 1e-7f +
           (float)(whole % 97);
}

/* Element i of a rank's part in the whole tensor, or -1. */
static int64_t whole_of(const struct net_tensor *x, const struct net_part *p, int64_t i)
{
    const struct shape *s = &x->spec->shape;
    int64_t inner = p->axis == 0 && s->dims == 2 ? s->size[1] : 1;
    int64_t k = i % inner, a = i / inner % p->extent, o = i / inner / p->extent;
    return p->begin + a < p->end ? (o * s->size[p->axis] + p->begin + a) * inner + k : -1;
}

/* Calls `visit` for what the rank holds of each kind, range by range. */
static void each_held(struct rank *r, void (*visit)(struct rank *, enum piece_kind,
                                                    const struct net_tensor *, size_t, size_t))
{
    const struct net *n = &r->g.stage.net;
    for (int t = 0; t < n->tensor_count; t++)
        for (int k = 0; k <= PIECE_STATE_1; k++) {
            const struct net_tensor *x = &n->tensors[t];
            size_t last = x->offset + x->elements;
            for (size_t at = x->offset, next; at < last && (k == 0 || !x->is_fixed); at = next) {
                next = replicas_stretch(&r->g.replicas, at);
                next = next < last ? next : last;
                size_t from = at, to = next;
                replicas_clip_held(&r->g.replicas, (enum piece_kind)k, &from, &to);
                if (from < to)
                    visit(r, (enum piece_kind)k, x, from, to);
            }
        }
}

static float wanted(enum piece_kind k, const struct net_tensor *x, size_t at)
{
    int64_t w = whole_of(x, &x->part, (int64_t)(at - x->offset));
    return w < 0 ? 0 : value(k, x->number, w);
}

static void fill_range(struct rank *r, enum piece_kind k, const struct net_tensor *x, size_t from,
                       size_t to)
{
    CLEANUP(mem_freep) float *v = mem_alloc((to - from) * sizeof *v);
    for (size_t at = from; at < to; at++)
        v[at - from] = wanted(k, x, at);
    replicas_set(&r->g.replicas, k, from, to - from, v);
}

static void check_range(struct rank *r, enum piece_kind k, const struct net_tensor *x, size_t from,
                        size_t to)
{
    CLEANUP(mem_freep) float *v = mem_alloc((to - from) * sizeof *v);
    replicas_get(&r->g.replicas, k, from, to - from, v);
    for (size_t at = from; at < to; at++)
        if (v[at - from] != wanted(k, x, at))
            fail_msg("%s[%zu], kind %d: %g, not %g", x->name, at - x->offset, k,
                     (double)v[at - from], (double)wanted(k, x, at));
}

static void fill(struct rank *r)
{
    each_held(r, fill_range);
}

struct saved {
    struct piece *pieces;
    float **values;
    size_t count;
};

static void save_rank(struct rank *r, struct saved *s)
{
    struct piece *list;
    struct err e;
    size_t count;
    assert_int_equal(pieces_list(&r->g, &list, &count, &e), 0);
    s->pieces = mem_realloc(s->pieces, (s->count + count + 1) * sizeof *s->pieces);
    s->values = mem_realloc(s->values, (s->count + count + 1) * sizeof *s->values);
    for (size_t i = 0; i < count; i++) {
        size_t n = list[i].to - list[i].from, half = n / 2;
        float *v = mem_alloc(n * sizeof *v);
        piece_read(&r->g, &list[i], 0, half, v);
        piece_read(&r->g, &list[i], half, n, v + half);
        assert_non_null(piece_tensor_name(&r->g, &list[i]));
        s->pieces[s->count] = list[i];
        s->values[s->count++] = v;
    }
    free(list);
}

static void forget(struct saved *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->values[i]);
    free(s->values);
    free(s->pieces);
}

static void save_mesh(const struct shape3 *m, int axis, struct saved *s)
{
    *s = (struct saved){0};
    for (int d = 0; d < m->data; d++)
        for (int p = 0; p < m->pipeline; p++)
            for (int t = 0; t < m->tensor; t++) {
                struct rank *r = open_rank(m, d, p, t, axis);
                fill(r);
                save_rank(r, s);
                close_rank(r);
            }
}

/* Every element of every tensor and kind once; with tensor ranks, vectors once by each of them. */
static void check_once(const struct saved *s, int tensor)
{
    for (int l = 0, number = 0; l < job.model.layer_count; l++)
        for (int t = 0; t < job.model.layers[l].tensor_count; t++, number++)
            for (int k = 0; k <= PIECE_STATE_1; k++) {
                const struct tensor_spec *spec = &job.model.layers[l].tensors[t];
                int64_t n = shape_elements(&spec->shape), want = spec->is_fixed && k > 0 ? 0 : 1;
                int copies = tensor > 1 && spec->shape.dims == 1 ? tensor : 1;
                unsigned char *seen = mem_zalloc((size_t)n);
                struct net_tensor x = {.spec = spec};
                for (size_t i = 0; i < s->count; i++) {
                    const struct piece *p = &s->pieces[i];
                    if (p->number != (uint64_t)number || p->kind != (enum piece_kind)k)
                        continue;
                    for (size_t j = p->from; j < p->to; j++) {
                        int64_t w = whole_of(&x, &p->part, (int64_t)j);
                        if (w >= 0)
                            seen[w]++;
                    }
                }
                for (int64_t w = 0; w < n; w++)
                    assert_int_equal(seen[w], want * copies);
                free(seen);
            }
}

static void load_rank(struct rank *r, const struct saved *s)
{
    struct err e;
    const struct pieces_scalars scalars = {.step = 9, .updates = 8};
    size_t wanted = 0;
    for (size_t i = 0; i < s->count; i++) {
        wanted += (size_t)pieces_want(&r->g, &s->pieces[i]);
        if (pieces_want(&r->g, &s->pieces[i]) &&
            pieces_put(&r->g, &s->pieces[i], s->values[i], &e) < 0)
            fail_msg("%s", e.text);
    }
    assert_true(wanted > 0 && wanted <= s->count);
    if (pieces_finish(&r->g, &scalars, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(r->g.step, 9);
    assert_int_equal(r->g.updates, 8);
}

static void check_rank(struct rank *r)
{
    each_held(r, check_range);
}

static void load_mesh(const struct shape3 *m, int axis, const struct saved *s)
{
    for (int d = 0; d < m->data; d++)
        for (int p = 0; p < m->pipeline; p++)
            for (int t = 0; t < m->tensor; t++) {
                struct rank *r = open_rank(m, d, p, t, axis);
                load_rank(r, s);
                check_rank(r);
                close_rank(r);
            }
}

static void any_mesh_takes_what_another_saved(void **state)
{
    (void)state;
    static const struct shape3 FROM[] = {{1, 1, 1, 0}, {4, 1, 1, 1}, {4, 1, 1, 3},
                                         {3, 2, 1, 2}, {2, 1, 1, 0}, {1, 5, 1, 0}};
    static const struct shape3 TO[] = {
        {1, 1, 1, 0}, {2, 1, 1, 1}, {5, 3, 1, 3}, {7, 1, 1, 2}, {3, 1, 1, 0}};
    for (size_t i = 0; i < ARRAY_LEN(FROM); i++) {
        struct saved s;
        save_mesh(&FROM[i], 0, &s);
        check_once(&s, 1);
        for (size_t j = 0; j < ARRAY_LEN(TO); j++)
            load_mesh(&TO[j], 0, &s);
        forget(&s);
    }
}

static void tensors_may_be_split_another_way(void **state)
{
    (void)state;
    static const struct shape3 SPLIT[] = {{1, 1, 2, 0}, {2, 1, 3, 3}, {1, 2, 2, 0}};
    const struct shape3 whole = {2, 1, 1, 1};
    struct saved s;
    save_mesh(&whole, 0, &s);
    for (int axis = 0; axis < 2; axis++)
        for (size_t i = 0; i < ARRAY_LEN(SPLIT); i++)
            load_mesh(&SPLIT[i], axis, &s);
    forget(&s);
}

static int is_same(const struct piece *a, const struct piece *b)
{
    return a->kind == b->kind && a->number == b->number && a->from == b->from && a->to == b->to &&
           a->part.axis == b->part.axis && a->part.begin == b->part.begin &&
           a->part.end == b->part.end && a->replica == b->replica;
}

/* Each tensor rank's columns, or rows, to ranks that split the other way, or not at all. Vectors
 * are whole on each and saved by each: taking one of them is enough. */
static void split_tensors_come_together_again(void **state)
{
    (void)state;
    static const struct shape3 FROM = {2, 1, 3, 1}, WHOLE = {3, 1, 1, 2}, OTHER = {1, 1, 2, 0};
    for (int axis = 0; axis < 2; axis++) {
        struct saved s;
        save_mesh(&FROM, axis, &s);
        check_once(&s, FROM.tensor);
        size_t kept = 0;
        for (size_t i = 0; i < s.count; i++) {
            int is_copy = 0;
            for (size_t j = 0; j < kept; j++)
                is_copy |= is_same(&s.pieces[i], &s.pieces[j]);
            if (is_copy) {
                free(s.values[i]);
                continue;
            }
            s.pieces[kept] = s.pieces[i];
            s.values[kept++] = s.values[i];
        }
        s.count = kept;
        load_mesh(&WHOLE, 0, &s);
        load_mesh(&OTHER, !axis, &s);
        forget(&s);
    }
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    const struct shape3 one = {1, 1, 1, 0};
    struct saved s;
    struct err e;
    save_mesh(&one, 0, &s);
    struct rank *r = open_rank(&one, 0, 0, 0, 0);
    const struct pieces_scalars scalars = {0};
    for (size_t i = 0; i < s.count; i++)
        if (!(s.pieces[i].number == 2 && s.pieces[i].kind == PIECE_STATE_1))
            assert_int_equal(pieces_put(&r->g, &s.pieces[i], s.values[i], &e), 0);
    assert_int_equal(pieces_finish(&r->g, &scalars, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "layers.1.kernel"));
    assert_non_null(strstr(e.text, "state.1"));
    close_rank(r);
    forget(&s);
}

static void pieces_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const struct shape3 one = {1, 1, 1, 0};
    struct rank *r = open_rank(&one, 0, 0, 0, 0);
    const struct piece good = {
        .number = 0, .part = {0, 0, 7, 7}, .to = 910, .replica = -1, .replicas = 1};
    struct piece bad[] = {good, good, good, good, good, good, good, good};
    struct err e;
    float *values = mem_zalloc(910 * sizeof *values);
    bad[0].to = 911;
    bad[1].part.axis = 2;
    bad[2].part.extent = 0;
    bad[3].part.end = 8;
    bad[4].from = 911;
    bad[5].part.begin = -1;
    bad[6].replicas = bad[6].replica = 0;
    bad[7].replica = 1;
    assert_true(pieces_want(&r->g, &good));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_false(pieces_want(&r->g, &bad[i]));
        assert_int_equal(pieces_put(&r->g, &bad[i], values, &e), ERR_CORRUPT);
    }
    free(values);
    close_rank(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_mesh_takes_what_another_saved),
        cmocka_unit_test(tensors_may_be_split_another_way),
        cmocka_unit_test(split_tensors_come_together_again),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(pieces_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
