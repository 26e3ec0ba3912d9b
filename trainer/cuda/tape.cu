/* tape.cu: see tape.h. Recordings that come again become graphs in tape_graph.cu. */
#include "trainer/cuda/tape_parts.h"

/* Longer ones are issued in pieces: the device should begin before the host has said it all. */
#define STEPS_MOST 2048

static struct tape_recording recording;
static struct tape_counts counts;
static uint64_t place;

uint64_t tape_place(void)
{
    return place;
}

/* ---- names, for sentences ---- */

#define NAMES_MOST 12
static const char *names[NAMES_MOST]; /* distinct, the oldest first */
static int name_count;

static void note_name(const char *name)
{
    int at = 0;
    while (at < name_count && names[at] != name)
        at++;
    if (at == name_count && name_count < NAMES_MOST)
        name_count++;
    else if (at == name_count)
        at = 0;
    memmove(names + at, names + at + 1, (size_t)(name_count - 1 - at) * sizeof *names);
    names[name_count - 1] = name;
}

const char *tape_issued_names(void)
{
    static char text[256];
    size_t n = 0;
    text[0] = '\0';
    for (int i = name_count; i-- > 0 && n < sizeof text;)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "", names[i]);
    return text;
}

void tape_issued_well(void)
{
    name_count = 0;
}

/* ---- recordings ---- */

static void *grown(void *p, size_t *room, size_t need, size_t size)
{
    if (need <= *room)
        return p;
    while (*room < need)
        *room = *room ? 2 * *room : 256;
    return mem_realloc(p, *room * size);
}

static void mix(uint64_t value)
{
    uint64_t h = (recording.hash ^ value) * 0x9e3779b97f4a7c15u;
    recording.hash = h ^ h >> 29;
}

static void mix_bytes(const void *p, size_t bytes)
{
    const unsigned char *at = static_cast<const unsigned char *>(p);
    for (; bytes; bytes -= bytes < 8 ? bytes : 8, at += 8) {
        uint64_t word = 0;
        memcpy(&word, at, bytes < 8 ? bytes : 8);
        mix(word);
    }
}

static uint64_t bits_of(const void *p)
{
    return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(p));
}

static struct tape_step *add_step(enum tape_kind kind, const char *name)
{
    struct tape_recording *r = &recording;
    if (r->step_count == STEPS_MOST)
        tape_issue();
    r->steps = static_cast<struct tape_step *>(
        grown(r->steps, &r->step_room, r->step_count + 1, sizeof *r->steps));
    struct tape_step *s = &r->steps[r->step_count++];
    memset(static_cast<void *>(s), 0, sizeof *s); /* padding too: steps are compared as bytes */
    place++;
    s->kind = kind;
    s->name = name;
    s->argument = r->argument_count;
    mix(static_cast<uint64_t>(kind));
    return s;
}

static void add_argument(struct tape_step *s, const void *value, size_t size)
{
    struct tape_recording *r = &recording;
    size_t offset = (r->byte_count + 15) / 16 * 16;
    r->arguments = static_cast<struct tape_argument *>(
        grown(r->arguments, &r->argument_room, r->argument_count + 1, sizeof *r->arguments));
    r->bytes = static_cast<unsigned char *>(
        grown(r->bytes, &r->byte_room, offset + size, sizeof *r->bytes));
    r->arguments[r->argument_count++] = {offset, size};
    memcpy(r->bytes + offset, value, size);
    r->byte_count = offset + size;
    s->argument_count++;
    mix(size);
}

void tape_kernel(const struct tape_kernel *k)
{
    if (k->shared > TAPE_SHARED || k->count > TAPE_ARGUMENTS)
        BUG("%s asks for %zu bytes of shared memory and has %d arguments", k->name, k->shared,
            k->count);
    if (device_failed() || !k->grid.x || !k->grid.y || !k->grid.z)
        return;
    struct tape_step *s = add_step(TAPE_KERNEL, k->name);
    s->function = k->function;
    s->grid[0] = k->grid.x, s->grid[1] = k->grid.y, s->grid[2] = k->grid.z;
    s->block[0] = k->block.x, s->block[1] = k->block.y, s->block[2] = k->block.z;
    s->bytes = k->shared;
    mix(bits_of(k->function));
    mix_bytes(s->grid, sizeof s->grid);
    mix_bytes(s->block, sizeof s->block);
    mix(k->shared);
    for (int i = 0; i < k->count; i++)
        add_argument(s, k->arguments[i], k->sizes[i]);
}

void tape_call_named(const char *name, tape_function *f, const void *arguments, size_t bytes)
{
    if (device_failed())
        return;
    struct tape_step *s = add_step(TAPE_CALL, name);
    s->call = f;
    mix(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(f)));
    mix_bytes(arguments, bytes);
    add_argument(s, arguments, bytes);
}

void tape_copy(void *to, const void *from, size_t bytes)
{
    if (device_failed() || !bytes || to == from)
        return;
    struct tape_step *s = add_step(TAPE_COPY, "copy");
    s->to = to;
    s->from = from;
    s->bytes = bytes;
    mix(bits_of(to));
    mix(bits_of(from));
    mix(bytes);
}

void tape_zero(void *p, size_t bytes)
{
    if (device_failed() || !bytes)
        return;
    struct tape_step *s = add_step(TAPE_ZERO, "zero");
    s->to = p;
    s->bytes = bytes;
    mix(bits_of(p));
    mix(bytes);
}

/* ---- issuing ---- */

void tape_kernel_arguments(const struct tape_recording *r, const struct tape_step *s,
                           void *ret[TAPE_ARGUMENTS])
{
    for (size_t i = 0; i < s->argument_count; i++)
        ret[i] = r->bytes + r->arguments[s->argument + i].offset;
}

static int launch(const struct tape_recording *r, const struct tape_step *s, cudaStream_t stream)
{
    void *arguments[TAPE_ARGUMENTS];
    char what[160];
    tape_kernel_arguments(r, s, arguments);
    cudaError_t c =
        cudaLaunchKernel(s->function, dim3(s->grid[0], s->grid[1], s->grid[2]),
                         dim3(s->block[0], s->block[1], s->block[2]), arguments, s->bytes, stream);
    if (c == cudaSuccess)
        return device_ok(c, "launch");
    snprintf(what, sizeof what, "launch the kernel %s with %u x %u x %u blocks of %u threads",
             s->name, s->grid[0], s->grid[1], s->grid[2], s->block[0]);
    return device_ok(c, what);
}

int tape_issue_step(const struct tape_recording *r, const struct tape_step *s, cudaStream_t stream)
{
    note_name(s->name);
    switch (s->kind) {
    case TAPE_KERNEL: return launch(r, s, stream);
    case TAPE_CALL:
        return s->call(stream, r->bytes + r->arguments[s->argument].offset) == 0 &&
               !device_failed();
    case TAPE_COPY:
        return device_ok(
            cudaMemcpyAsync(s->to, s->from, s->bytes, cudaMemcpyDeviceToDevice, stream),
            "copy within its memory");
    case TAPE_ZERO: return device_ok(cudaMemsetAsync(s->to, 0, s->bytes, stream), "clear memory");
    }
    return 0;
}

static void begin_again(void)
{
    recording.step_count = recording.argument_count = recording.byte_count = 0;
    recording.hash = 0;
}

/* Nothing of what is issued records anything. */
void tape_issue(void)
{
    place++; /* also for what others then do on the stream */
    if (!recording.step_count)
        return;
    if (device_failed()) {
        begin_again();
        return;
    }
    device.is_asked = 1;
    if (!device_options()->is_plain && tape_replay(&recording, &counts)) {
        for (size_t i = 0; i < recording.step_count; i++)
            note_name(recording.steps[i].name);
        counts.replayed++;
    } else {
        for (size_t i = 0; i < recording.step_count; i++)
            if (!tape_issue_step(&recording, &recording.steps[i], device.compute))
                break;
        counts.direct++;
    }
    begin_again();
}

struct tape_counts tape_counts(void)
{
    return counts;
}

void tape_free(struct tape_recording *r)
{
    free(r->steps);
    free(r->arguments);
    free(r->bytes);
    *r = tape_recording{};
}

void tape_close(void)
{
    place++;
    tape_free(&recording);
    tape_forget_graphs();
    counts = {};
    name_count = 0;
}

dim3 tape_grid(int64_t n)
{
    int64_t wanted = (n + TAPE_THREADS - 1) / TAPE_THREADS;
    int64_t most = static_cast<int64_t>(device_traits()->multiprocessors) * (2048 / TAPE_THREADS);
    return dim3(static_cast<unsigned>(wanted < most ? wanted : most));
}
