#pragma once
// a07: a06's code; new is the config, which a sweep of the space chose (ladder/attention.py).
#include "attention/a06_fp_fusion.cuh"

struct A07 : A06 {};
