#include "trainer/loss_scale.h"

double loss_scale_first = LOSS_SCALE_FIRST;

void loss_scale_init(struct loss_scale *s, enum compute_type compute)
{
    int is_on = compute == COMPUTE_FLOAT16;
    *s = (struct loss_scale){.is_on = is_on, .factor = is_on ? loss_scale_first : 1};
}

int loss_scale_can_fall(const struct loss_scale *s)
{
    return s->is_on && s->factor > 1;
}

double loss_scale_after(struct loss_scale *s, int is_good)
{
    double before = s->factor;
    if (!s->is_on)
        return 1;
    s->good = is_good ? s->good + 1 : 0;
    if (!is_good && s->factor > 1)
        s->factor /= 2;
    if (s->good >= LOSS_SCALE_STEPS) {
        s->good = 0;
        if (s->factor < LOSS_SCALE_MOST)
            s->factor *= 2;
    }
    return s->factor / before;
}
