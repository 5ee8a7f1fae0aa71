#pragma once
// What a call's own function does to a score, and its derivative. In the units of such calls their text stands in place
// of this file (attn/backward_score.py).

struct ScoreNumbers {};  // what the functions read as args.number[k]

struct Modification {
  static __device__ float run(float value, int, int, int, int, const ScoreNumbers&) { return value; }
  static __device__ float slope(float, int, int, int, int, const ScoreNumbers&) { return 1.f; }
};
