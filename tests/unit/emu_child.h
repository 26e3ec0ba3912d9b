/* emu_child.h: a program on the emulated device, in a process of its own: the device starts once
 * per process, reads its settings from the environment, and answers a wrong program by ending it.
 */
#ifndef TRAINYARD_TESTS_EMU_CHILD_H
#define TRAINYARD_TESTS_EMU_CHILD_H

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>

#include "tests/emu/emu.h"

/* Within a program: 0 goes on, else its line is the process's exit status, told on stderr. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) MUST((call) == cudaSuccess)

typedef int emu_program(void);

template <class... P, class... A>
static cudaError_t launch(void (*kernel)(P...), const char *name, dim3 grid, dim3 block,
                          size_t shared, cudaStream_t stream, A... a)
{
    emu_know(kernel, name);
    std::tuple<P...> values(a...);
    return std::apply(
        [&](auto &...v) {
            void *pointers[] = {&v..., nullptr};
            return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, pointers,
                                    shared, stream);
        },
        values);
}
#define LAUNCH(kernel, grid, block, shared, ...)                                                   \
    launch(kernel, #kernel, grid, block, shared, NULL, __VA_ARGS__)
#define LAUNCH_ON(stream, kernel, grid, block, ...)                                                \
    launch(kernel, #kernel, grid, block, 0, stream, __VA_ARGS__)

/* Keeps streams from going on until it opens: what is queued behind it runs in the order that the
 * device chooses, however slow the host was. */
struct gate {
    std::atomic<int> is_open;
};
static inline cudaError_t wait_for_gate(gate *g, cudaStream_t s)
{
    return emu_enqueue(s, "a gate", [g] { return g->is_open ? EMU_DONE : EMU_NOT_YET; });
}

/* How it ended (wait()'s status) and what it said on stderr. `settings`: "NAME=value" or NULL. */
static int run_child(emu_program *f, const char *setting, char *said, size_t room)
{
    int ends[2];
    size_t n = 0;
    ssize_t r;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t p = fork();
    assert_true(p >= 0);
    if (p == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        if (setting)
            putenv(const_cast<char *>(setting));
        dup2(ends[1], 2);
        alarm(120);
        _exit(f());
    }
    close(ends[1]);
    while (n + 1 < room && (r = read(ends[0], said + n, room - 1 - n)) > 0)
        n += static_cast<size_t>(r);
    said[n] = '\0';
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(p, &status, 0), p);
    return status;
}

/* The program ends well. */
static inline void expect_well(emu_program *f, const char *setting)
{
    char said[8192];
    int status = run_child(f, setting, said, sizeof said);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("with %s: status %#x: %s", setting ? setting : "no settings", status, said);
}

/* In every order. */
static inline void expect_well_in_any_order(emu_program *f)
{
    static const char *const orders[] = {
        "TRAINYARD_EMU_ORDER=forward", "TRAINYARD_EMU_ORDER=reverse",
        "TRAINYARD_EMU_ORDER=shuffle:1", "TRAINYARD_EMU_ORDER=shuffle:22"};
    for (const char *o : orders)
        expect_well(f, o);
}

/* It ends by the signal, having said `words`. */
static inline void expect_death(emu_program *f, const char *setting, int by, const char *words)
{
    char said[8192];
    int status = run_child(f, setting, said, sizeof said);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != by)
        fail_msg("it should have ended by signal %d, but: status %#x: %s", by, status, said);
    if (!strstr(said, words))
        fail_msg("it should have said \"%s\", but: %s", words, said);
}

#endif
