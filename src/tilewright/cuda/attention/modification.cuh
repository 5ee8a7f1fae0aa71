#pragma once
// What a call's own function does to a score. In the units of such calls its text stands in place of this file
// (attn/rung.py).

struct ScoreNumbers {};  // what the function reads as args.number[k]

struct Modification {
  static __device__ float run(float value, int, int, int, int, const ScoreNumbers&) { return value; }
};
