/* cpu_loops.h: how the CPU backend's loops become vectors.
 *
 * CPU_CLONES compiles a function once for AVX2 machines and once for all x86-64 and lets the
 * loader choose. With contraction off (Makefile) both round alike, so the choice never shows in a
 * result. Sanitizers and clang get the plain function: indirect functions run before they are set
 * up.
 *
 * CPU_INDEPENDENT before a loop says that its iterations do not depend on one another even where
 * its pointers are equal (in-place work on the same index).
 */
#ifndef TRAINYARD_TRAINER_CPU_LOOPS_H
#define TRAINYARD_TRAINER_CPU_LOOPS_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__OPTIMIZE_SIZE__)
#define CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CPU_CLONES
#endif

#if defined(__clang__)
#define CPU_INDEPENDENT /* its way to say it warns where there is nothing to gain */
#else
#define CPU_INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
