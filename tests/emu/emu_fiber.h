/* emu_fiber.h: stacks of their own that one thread switches between. */
#ifndef TRAINYARD_EMU_FIBER_H
#define TRAINYARD_EMU_FIBER_H

struct emu_fiber;

/* The calling thread's own stack, to switch back to. */
emu_fiber *emu_fiber_home(void);
/* Begins in `main` at the first switch to it; main never returns. Aborts without memory. */
emu_fiber *emu_fiber_new(void (*main)(void));
/* Leaves `from`, which is the caller's own; returns when somebody switches back to it. */
void emu_fiber_switch(emu_fiber *from, emu_fiber *to);
/* Whether an address lies below a fiber's stack: it has overflowed. */
int emu_fiber_overflowed(const void *address);

#endif
