#pragma once
// std::conditional, without the standard library's headers.

template <bool first, class A, class B>
struct Select {
  using type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using type = B;
};
