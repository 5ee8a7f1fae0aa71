// Which kernel a C++ name means, and the types of its parameters, told by the compiler in two variables of the PTX.
// TILEWRIGHT_ENTRY is the name. A parameter is kind << 8 | bytes of a number, + 1 << 16 for each pointer to it; a vector
// such as float4 has the bytes of its parts and bit 24; other types are 0.
// Names begin with tw_, since the file that includes this may well #define T or A.
#pragma once
namespace tilewright_entry_types {
template <class tw_t> struct tw_code {
  enum : unsigned { tw_of = 0 };
};
template <class tw_t> struct tw_code<const tw_t> : tw_code<tw_t> {};
template <class tw_t> struct tw_code<volatile tw_t> : tw_code<tw_t> {};
template <class tw_t> struct tw_code<const volatile tw_t> : tw_code<tw_t> {};
template <class tw_t> struct tw_code<tw_t *> {
  enum : unsigned { tw_of = 0x10000u + tw_code<tw_t>::tw_of };
};
#define TILEWRIGHT_NUMBER(type, kind, bytes) \
  template <> struct tw_code<type> { enum : unsigned { tw_of = kind << 8 | bytes }; };
#define TILEWRIGHT_VECTOR(type, part) \
  template <> struct tw_code<type> { enum : unsigned { tw_of = 1u << 24 | tw_code<part>::tw_of }; };
#define TILEWRIGHT_VECTORS(name, part) \
  TILEWRIGHT_VECTOR(name##2, part) TILEWRIGHT_VECTOR(name##3, part) TILEWRIGHT_VECTOR(name##4, part)
TILEWRIGHT_NUMBER(bool, 'B', 1)
TILEWRIGHT_NUMBER(char, 'i', 1)
TILEWRIGHT_NUMBER(signed char, 'i', 1)
TILEWRIGHT_NUMBER(unsigned char, 'u', 1)
TILEWRIGHT_NUMBER(short, 'i', 2)
TILEWRIGHT_NUMBER(unsigned short, 'u', 2)
TILEWRIGHT_NUMBER(int, 'i', 4)
TILEWRIGHT_NUMBER(unsigned, 'u', 4)
TILEWRIGHT_NUMBER(long, 'i', 8)
TILEWRIGHT_NUMBER(unsigned long, 'u', 8)
TILEWRIGHT_NUMBER(long long, 'i', 8)
TILEWRIGHT_NUMBER(unsigned long long, 'u', 8)
TILEWRIGHT_NUMBER(float, 'f', 4)
TILEWRIGHT_NUMBER(double, 'f', 8)
TILEWRIGHT_VECTORS(char, char)
TILEWRIGHT_VECTORS(uchar, unsigned char)
TILEWRIGHT_VECTORS(short, short)
TILEWRIGHT_VECTORS(ushort, unsigned short)
TILEWRIGHT_VECTORS(int, int)
TILEWRIGHT_VECTORS(uint, unsigned)
TILEWRIGHT_VECTORS(float, float)
TILEWRIGHT_VECTOR(double2, double)
TILEWRIGHT_VECTOR(longlong2, long long)
TILEWRIGHT_VECTOR(ulonglong2, unsigned long long)
#ifdef __CUDA_FP16_TYPES_EXIST__
TILEWRIGHT_NUMBER(__half, 'f', 2)
TILEWRIGHT_VECTOR(__half2, __half)
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
TILEWRIGHT_NUMBER(__nv_bfloat16, 'b', 2)
TILEWRIGHT_VECTOR(__nv_bfloat162, __nv_bfloat16)
#endif
template <class... tw_ts> struct tw_codes {
  unsigned tw_of[sizeof...(tw_ts) + 1];
};
template <class... tw_ts> constexpr tw_codes<tw_ts...> tw_told(void (*)(tw_ts...)) {
  return {{tw_code<tw_ts>::tw_of..., 0xffffffffu}};
}
}  // namespace tilewright_entry_types
extern "C" __device__ auto *tilewright_entry = &TILEWRIGHT_ENTRY;
extern "C" __device__ auto tilewright_parameters =
    tilewright_entry_types::tw_told(static_cast<decltype(&TILEWRIGHT_ENTRY)>(nullptr));
