/* planner_write.c: a plan as JSON text. */
#include <jansson.h>

#include "base/mem.h"
#include "daemon/coordinator/planner.h"
#include "daemon/coordinator/text.h"

static void write_mesh(const struct plan *plan, struct buf *b)
{
    text_key(b, "mesh");
    text_open(b, "{");
    text_int(b, "data", plan->data);
    text_int(b, "pipeline", plan->pipeline);
    text_int(b, "tensor", plan->tensor);
    text_int(b, "chunks", plan->chunks);
    text_int(b, "microbatches", plan->microbatches);
    text_string(b, "schedule", pipeline_schedule_name(plan->schedule));
    text_int(b, "zero", plan->zero);
    text_close(b, "}");
}

static void write_stages(const struct plan *plan, struct buf *b)
{
    text_key(b, "stages");
    text_open(b, "[");
    for (int s = 0; s < plan_stages(plan); s++) {
        text_open(b, "[");
        buf_addf(b, "%d,%d", plan->stage_first[s], plan->stage_first[s + 1]);
        text_close(b, "]");
    }
    text_close(b, "]");
}

static void write_recompute(const struct plan *plan, struct buf *b)
{
    int layers = plan->recompute ? plan->stage_first[plan_stages(plan)] : 0;
    const char *comma = "";
    text_key(b, "recompute");
    buf_adds(b, "[");
    for (int i = 0; i < layers; i++) {
        if (!plan->recompute[i])
            continue;
        buf_addf(b, "%s%d", comma, i);
        comma = ",";
    }
    buf_adds(b, "]");
}

/* As the JSON library writes it. */
static void write_real(struct buf *b, const char *key, double x)
{
    json_auto_t *number = json_real(x);
    CLEANUP(mem_freep) char *text = json_dumps(number, JSON_ENCODE_ANY);
    text_raw(b, key, text);
}

static void write_parallel(const struct parallel *p, struct buf *b)
{
    text_key(b, "parallel");
    text_open(b, "{");
    text_raw(b, "reproducible", p->reproducible ? "true" : "false");
    text_int(b, "grains", p->grains);
    text_string(b, "sync", sync_name(p->sync));
    text_int(b, "local_steps", p->local_steps);
    write_real(b, "outer_learning_rate", p->outer_learning_rate);
    write_real(b, "outer_momentum", p->outer_momentum);
    text_string(b, "codec", codec_name(p->codec));
    write_real(b, "top_k", p->top_k);
    text_string(b, "shares", shares_name(p->shares));
    text_raw(b, "rebalance", p->rebalance ? "true" : "false");
    text_raw(b, "overlap", p->overlap ? "true" : "false");
    text_close(b, "}");
}

void planner_write(const struct plan *plan, struct buf *b)
{
    text_open(b, "{");
    text_string(b, "name", strategy_name(plan->kind));
    text_int(b, "ranks", plan->ranks);
    write_mesh(plan, b);
    write_stages(plan, b);
    write_recompute(plan, b);
    write_parallel(&plan->parallel, b);
    text_int(b, "memory_bytes", plan->memory_bytes);
    text_string(b, "chosen_by", plan->chosen_by_auto ? "auto" : "user");
    text_string(b, "why", plan->why);
    text_close(b, "}");
}
