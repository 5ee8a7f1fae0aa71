// The emulator's inner loops, compiled by the machine's own C compiler when there is one (emu/compiled.py).
#include "lanes.c"
#include "tensor.c"
#include "memory.c"
#include "control.c"
#include "atomics.c"
#include "access.c"
#include "engine.c"
#include "counting.c"
