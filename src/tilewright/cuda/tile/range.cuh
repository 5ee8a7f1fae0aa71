#pragma once
// Interval arithmetic. A range holds every number that an epilogue's fp32 arithmetic may give, whichever products the
// compiler has fused into sums. A function may be off by twice what tilewright.epilogue says, compared with its value
// in fp64.
//
//     low <= high     a number from low to high, infinities among them, not NaN
//     both NaN        NaN for certain
//     low > high      anything, NaN too: where an infinity may meet its like, or a divisor be 0
//
// Ends are fp32 numbers, made in fp64 and rounded outwards. The product of two fp32 numbers is exact in fp64, so a
// fused multiply-add of numbers inside stays inside, and so does every rounding.

struct Range {
  float low, high;
};

__device__ inline float infinite_float() { return __int_as_float(0x7f800000); }
__device__ inline Range anything() { return {infinite_float(), -infinite_float()}; }
__device__ inline Range not_a_number() { return {__int_as_float(0x7fffffff), __int_as_float(0x7fffffff)}; }
__device__ inline Range exactly(float x) { return {x, x}; }
__device__ inline bool is_anything(Range x) { return x.low > x.high; }
__device__ inline bool is_nan(Range x) { return x.low != x.low; }
__device__ inline bool is_point(Range x) { return x.low == x.high; }
__device__ inline bool may_be_zero(Range x) { return x.low <= 0 && x.high >= 0; }
__device__ inline bool may_be_infinite(Range x) { return isinf(x.low) || isinf(x.high); }

__device__ inline Range outwards(double low, double high) {
  if (low != low || high != high) return low != low && high != high ? not_a_number() : anything();
  return {__double2float_rd(low), __double2float_ru(high)};
}
/// Values from low to high, each off by up to a part of itself and by `least`.
__device__ inline Range off_by(double low, double high, double part, double least = 0x1p-149) {
  const auto slack = [&](double x) { return isfinite(x) ? part * fabs(x) + least : 0.0; };
  return outwards(low - slack(low), high + slack(high));
}
/// True where one of two operands settles the answer, which is left in `settled`.
__device__ inline bool settles(Range a, Range b, Range& settled) {
  settled = is_nan(a) || is_nan(b) ? not_a_number() : anything();
  return is_nan(a) || is_nan(b) || is_anything(a) || is_anything(b);
}
/// The least range around both.
__device__ inline Range hull(Range a, Range b) {
  if (is_nan(a) && is_nan(b)) return a;
  if (is_nan(a) || is_nan(b) || is_anything(a) || is_anything(b)) return anything();
  return {fminf(a.low, b.low), fmaxf(a.high, b.high)};
}
/// The range around the results of an operation at the four pairs of ends of a and b.
template <class Op>
__device__ inline Range at_corners(Range a, Range b, double part, Op op) {
  const double at[4] = {op(double(a.low), double(b.low)), op(double(a.low), double(b.high)),
                        op(double(a.high), double(b.low)), op(double(a.high), double(b.high))};
  double low = at[0], high = at[0];
  for (int i = 0; i < 4; ++i) {
    if (at[i] != at[i]) return is_point(a) && is_point(b) ? not_a_number() : anything();
    low = fmin(low, at[i]), high = fmax(high, at[i]);
  }
  return part > 0 ? off_by(low, high, part) : outwards(low, high);
}

// --- arithmetic ---

__device__ inline Range operator-(Range a) { return {-a.high, -a.low}; }
__device__ inline Range operator+(Range a, Range b) {
  if (Range settled; settles(a, b, settled)) return settled;
  const float most = infinite_float();
  if ((a.high == most && b.low == -most) || (a.low == -most && b.high == most))
    return is_point(a) && is_point(b) ? not_a_number() : anything();
  return outwards(double(a.low) + b.low, double(a.high) + b.high);
}
__device__ inline Range operator-(Range a, Range b) { return a + -b; }
__device__ inline Range operator*(Range a, Range b) {
  if (Range settled; settles(a, b, settled)) return settled;
  if ((may_be_zero(a) && may_be_infinite(b)) || (may_be_infinite(a) && may_be_zero(b)))
    return is_point(a) && is_point(b) ? not_a_number() : anything();
  return at_corners(a, b, 0, [](double x, double y) { return x * y; });
}
__device__ inline Range operator/(Range a, Range b) {
  if (Range settled; settles(a, b, settled)) return settled;
  if (may_be_zero(b)) return anything();
  return at_corners(a, b, 0x1p-21, [](double x, double y) { return x / y; });
}

// --- functions ---

constexpr double of_brief = 0x1p-15;  // of the short forms, which results of 16 bits have (fused_brief)
constexpr double flushed = 0x1p-125;  // below that some are 0

/// A function that grows, off by a part of its value.
template <class F>
__device__ inline Range growing(Range x, double part, double least, F f) {
  if (is_nan(x) || is_anything(x)) return x;
  return off_by(f(double(x.low)), f(double(x.high)), part, least);
}
/// A function that falls up to `turn`, where it is `bottom`, and grows from there, negative between -inf and 0. It may
/// be off by `part(x)` of its value and by `least(x)`, each the largest at one end of the range.
template <class F, class Part, class Least>
__device__ inline Range turning(Range x, double turn, double bottom, F f, Part part, Least least) {
  if (is_nan(x) || is_anything(x)) return x;
  const double first = f(double(x.low)), last = f(double(x.high));
  if (first != first || last != last) return outwards(first, last);
  const double low = x.low < turn && x.high > turn ? bottom : fmin(first, last);
  return off_by(low, fmax(first, last), fmax(part(x.low), part(x.high)), fmax(least(x.low), least(x.high)));
}

__device__ inline double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
__device__ inline double tanhs_argument(double x) { return x * (0.0356774082 * x * x + 0.797884561); }

__device__ inline Range range_exp(Range x) {
  return growing(x, fused_brief ? of_brief : 0x1p-21, flushed, [](double v) { return exp(v); });
}
__device__ inline Range range_exp2(Range x) {
  return growing(x, 0x1p-21, 0x1p-148, [](double v) { return exp2(v); });
}
__device__ inline Range range_tanh(Range x) {
  return growing(x, 0x1p-21, 0x1p-148, [](double v) { return tanh(v); });
}
__device__ inline Range range_erf(Range x) {
  return growing(x, 0x1p-21, 0x1p-148, [](double v) { return erf(v); });
}
__device__ inline Range range_sigmoid(Range x) {
  return growing(x, fused_brief ? of_brief : 0x1p-20, flushed, sigmoid_of);
}
/// The range of a function that is defined from 0 on: NaN below.
template <class F>
__device__ inline Range from_zero(Range x, double part, F f) {
  if (is_nan(x) || is_anything(x)) return x;
  if (x.high < 0) return not_a_number();
  return x.low < 0 ? anything() : off_by(f(double(x.low)), f(double(x.high)), part);
}
__device__ inline Range range_log(Range x) {
  return from_zero(x, 0x1p-22, [](double v) { return log(v); });
}
__device__ inline Range range_sqrt(Range x) {
  return from_zero(x, 0x1p-24, [](double v) { return sqrt(v); });
}
__device__ inline Range range_rsqrt(Range x) {
  if (is_nan(x) || is_anything(x)) return x;
  if (x.high < 0) return not_a_number();
  if (x.low <= 0) return anything();  // of -0 it is -inf
  return off_by(1 / sqrt(double(x.high)), 1 / sqrt(double(x.low)), 0x1p-21);
}
__device__ inline Range range_silu(Range x) {
  return turning(
      x, -1.27846454276107, -0.278464542761074, [](double v) { return v * sigmoid_of(v); },
      [](double) { return fused_brief ? of_brief : 5 * 0x1p-22; }, [](double) { return 128 * flushed; });
}
__device__ inline Range range_gelu(Range x) {
  return turning(
      x, -0.751791524693564, -0.169971207479085, [](double v) { return 0.5 * v * (1 + erf(v * 0.70710678118654752)); },
      [](double) { return 0.0; }, [](double v) { return isfinite(v) ? 0x1p-21 * fabs(v) : 0.0; });
}
__device__ inline Range range_gelu_tanh(Range x) {
  // beyond |u| = 128 the tanh is 1 or -1, and the argument's error does not show
  return turning(
      x, -0.752461384, -0.170040754, [](double v) { return v * sigmoid_of(2 * tanhs_argument(v)); },
      [](double v) { return fused_brief ? of_brief : (8 + 4 * fmin(fabs(tanhs_argument(v)), 128.0)) * 0x1p-22; },
      [](double) { return 128 * flushed; });
}

__device__ inline Range range_max(Range a, Range b) {
  if (Range settled; settles(a, b, settled)) return settled;
  return {fmaxf(a.low, b.low), fmaxf(a.high, b.high)};
}
__device__ inline Range range_min(Range a, Range b) { return -range_max(-a, -b); }
__device__ inline Range range_relu(Range x) { return range_max(x, exactly(0)); }
__device__ inline Range range_abs(Range x) {
  if (is_nan(x) || is_anything(x)) return x;
  return x.low >= 0 ? x : x.high <= 0 ? -x : Range{0, fmaxf(-x.low, x.high)};
}

// --- conditions and indices ---

/// Two answers: a condition may hold; it may fail.
struct Truth {
  bool yes, no;
};
__device__ inline Truth certainly(bool holds) { return {holds, !holds}; }
__device__ inline Truth operator!(Truth a) { return {a.no, a.yes}; }
__device__ inline Truth both(Truth a, Truth b) { return {a.yes && b.yes, a.no || b.no}; }
__device__ inline Truth either(Truth a, Truth b) { return {a.yes || b.yes, a.no && b.no}; }

/// Integers from low to high.
struct Whole {
  long long low, high;
};
__device__ inline Whole exactly_whole(long long x) { return {x, x}; }
__device__ inline Range to_range(Whole x) { return {__ll2float_rd(x.low), __ll2float_ru(x.high)}; }

// of NaN no comparison holds
__device__ inline Truth operator<(Range a, Range b) {
  if (is_nan(a) || is_nan(b)) return certainly(false);
  if (is_anything(a) || is_anything(b)) return {true, true};
  return {a.low < b.high, a.high >= b.low};
}
__device__ inline Truth operator<=(Range a, Range b) {
  if (is_nan(a) || is_nan(b)) return certainly(false);
  if (is_anything(a) || is_anything(b)) return {true, true};
  return {a.low <= b.high, a.high > b.low};
}
__device__ inline Truth operator<(Whole a, Whole b) { return {a.low < b.high, a.high >= b.low}; }
__device__ inline Truth operator<=(Whole a, Whole b) { return {a.low <= b.high, a.high > b.low}; }
template <class T>
__device__ inline Truth operator>(T a, T b) {
  return b < a;
}
template <class T>
__device__ inline Truth operator>=(T a, T b) {
  return b <= a;
}
template <class T>
__device__ inline Truth operator==(T a, T b) {
  return both(a <= b, b <= a);
}
template <class T>
__device__ inline Truth operator!=(T a, T b) {
  return !(a == b);
}

__device__ inline Whole operator+(Whole a, Whole b) { return {a.low + b.low, a.high + b.high}; }
__device__ inline Whole operator-(Whole a, Whole b) { return {a.low - b.high, a.high - b.low}; }
__device__ inline Whole operator-(Whole a) { return {-a.high, -a.low}; }
__device__ inline Whole operator*(Whole a, Whole b) {
  const long long at[4] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  return {min(min(at[0], at[1]), min(at[2], at[3])), max(max(at[0], at[1]), max(at[2], at[3]))};
}
/// Quotient by a positive number, rounded down, and the remainder.
__device__ inline long long quotient_of(long long a, long long b) { return a / b - (a % b < 0); }
__device__ inline Whole quotient(Whole a, Whole b) { return {quotient_of(a.low, b.low), quotient_of(a.high, b.low)}; }
__device__ inline Whole remainder_of(Whole a, Whole b) {
  const long long turns = quotient_of(a.low, b.low);
  if (turns != quotient_of(a.high, b.low)) return {0, b.low - 1};
  return {a.low - turns * b.low, a.high - turns * b.low};
}

__device__ inline Whole hull(Whole a, Whole b) { return {min(a.low, b.low), max(a.high, b.high)}; }
template <class T>
__device__ inline T choose(Truth of, T a, T b) {
  return of.yes && of.no ? hull(a, b) : of.yes ? a : b;
}
