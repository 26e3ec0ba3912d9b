/* emu_order.cc: which of several comes next, where CUDA promises nothing: TRAINYARD_EMU_ORDER is
 * forward, reverse or shuffle:SEED. A seed gives one sequence of choices on every run. */
#include <cstdlib>
#include <cstring>

#include "emu_internal.h"

enum order { FORWARD, REVERSE, SHUFFLE };

struct choice {
    enum order order;
    uint64_t state;
    const char *name;
};

static choice read_order(void)
{
    const char *s = getenv("TRAINYARD_EMU_ORDER");
    if (!s || strcmp(s, "forward") == 0)
        return {FORWARD, 0, "forward"};
    if (strcmp(s, "reverse") == 0)
        return {REVERSE, 0, "reverse"};
    char *end = NULL;
    uint64_t seed = strncmp(s, "shuffle:", 8) == 0 ? strtoull(s + 8, &end, 10) : 0;
    if (!end || end == s + 8 || *end)
        emu_die("TRAINYARD_EMU_ORDER is \"%s\"; it is forward, reverse or shuffle:SEED", s);
    return {SHUFFLE, seed, s};
}

static choice &chosen(void)
{
    static choice c = read_order();
    return c;
}

const char *emu_order_name(void)
{
    return chosen().name;
}

/* splitmix64 */
static uint64_t draw(choice &c)
{
    uint64_t z = c.state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

size_t emu_choose(size_t n)
{
    choice &c = chosen();
    switch (c.order) {
    case FORWARD: return 0;
    case REVERSE: return n - 1;
    case SHUFFLE: break;
    }
    return static_cast<size_t>(draw(c) % n);
}

void emu_permute(std::vector<unsigned> &to, size_t n)
{
    choice &c = chosen();
    to.resize(n);
    for (size_t i = 0; i < n; i++)
        to[i] = static_cast<unsigned>(c.order == REVERSE ? n - 1 - i : i);
    for (size_t i = n; c.order == SHUFFLE && i > 1; i--)
        std::swap(to[i - 1], to[draw(c) % i]);
}
