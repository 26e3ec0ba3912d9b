/* Training over TCP: the weights are, bit for bit, those of the same ranks in shared memory; and a
 * rank that dies is named by the others. */
#include "tests/unit/trainer_gang.h"
#include "tests/unit/trainer_port.h"

static void use_tcp(struct gang *g)
{
    g->launch.transport = TRANSPORT_TCP;
    g->launch.attempt = "att_test";
    g->launch.node = "n1";
    g->launch.secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    g->launch.master_addr = "127.0.0.1";
    g->launch.master_port = free_port();
    assert_int_not_equal(g->launch.master_port, 0);
}

static void weights_of(const json_t *doc, const struct plan *p, int is_tcp, struct buf *ret)
{
    struct gang g;
    gang_open_plan(&g, doc, p);
    if (is_tcp)
        use_tcp(&g);
    gang_run(&g);
    read_whole(&g, "model.safetensors", ret);
    gang_close(&g);
}

static void tcp_trains_to_the_bits_of_shared_memory(void **state)
{
    (void)state;
    static const struct {
        int data, pipeline, microbatches, chunks;
        enum pipeline_schedule schedule;
    } MESHES[] = {{1, 1, 1, 1, SCHEDULE_GPIPE},      {2, 1, 1, 1, SCHEDULE_GPIPE},
                  {3, 1, 2, 1, SCHEDULE_GPIPE},      {1, 2, 3, 1, SCHEDULE_1F1B},
                  {2, 2, 2, 1, SCHEDULE_1F1B},       {1, 3, 4, 1, SCHEDULE_GPIPE},
                  {2, 2, 4, 2, SCHEDULE_INTERLEAVED}};
    json_auto_t *doc =
        gang_job(SMALL("200", "20", "{\"type\": \"dense\", \"units\": 7},", "\"epochs\": 2"));
    for (size_t i = 0; i < ARRAY_LEN(MESHES); i++) {
        struct buf shm = BUF_INIT, tcp = BUF_INIT;
        struct plan p = {.kind = MESHES[i].pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED,
                         .data = MESHES[i].data,
                         .pipeline = MESHES[i].pipeline,
                         .microbatches = MESHES[i].microbatches,
                         .chunks = MESHES[i].chunks,
                         .schedule = MESHES[i].schedule};
        parallel_set_defaults(&p.parallel);
        weights_of(doc, &p, 0, &shm);
        weights_of(doc, &p, 1, &tcp);
        assert_int_equal(shm.len, tcp.len);
        assert_memory_equal(shm.data, tcp.data, shm.len);
        buf_done(&shm);
        buf_done(&tcp);
    }
}

static void a_killed_rank_is_named_over_tcp(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job(SMALL("1000", "10", "", "\"epochs\": 100000"));
    gang_open(&g, doc, STRATEGY_MIRRORED, 3, 1, 1, SCHEDULE_1F1B);
    use_tcp(&g);
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    while (gang_read(&g), gang_count(&g, "step") == 0)
        usleep(1000); /* a poll: the loop ends by what it sees */
    kill(g.pids[1], SIGKILL);
    gang_wait(&g);
    assert_int_equal(g.status[1], -SIGKILL);
    for (int r = 0; r < 3; r += 2) {
        const json_t *v = gang_line(&g, "verdict", r, 0);
        assert_int_equal(g.status[r], TRAIN_RETRY);
        assert_string_equal(gang_text(v, "code"), "peer_lost");
        if (!strstr(gang_text(v, "reason"), "Rank 1 (node n1, 127.0.0.1) died, or was cut off"))
            fail_msg("%s", gang_text(v, "reason"));
    }
    gang_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_trains_to_the_bits_of_shared_memory),
        cmocka_unit_test(a_killed_rank_is_named_over_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
