// Arithmetic peaks of this CPU, from register-only loops on all threads: an upper bound on any kernel.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <omp.h>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "common.h"

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// Twelve independent chains cover the latency of two multiply-add pipes and leave registers for the operands. Written
// out, because an array of accumulators is kept in memory.
#define ATREX_CHAINS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
constexpr int kChains = 12;

// Keeps a value in a register and hides it from the optimizer.
template <class V>
inline __attribute__((always_inline)) void hide(V& v) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(v));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#else
  asm volatile("" : "+m"(v));
#endif
}

// Each loop returns the FLOPs it has done.
template <class Scalar>
double fma_loop(long iterations) {
  typedef Scalar V __attribute__((vector_size(kVectorBytes)));
  V a = V{} + Scalar(0.5), b = V{} + Scalar(0.25);
  hide(a);
  hide(b);
#define DECLARE(k) V c##k = V{} + Scalar(1);
  ATREX_CHAINS(DECLARE)
#undef DECLARE
  for (long i = 0; i < iterations; ++i) {
#define STEP(k) c##k = c##k * a + b; hide(c##k);
    ATREX_CHAINS(STEP)
#undef STEP
  }
  return 2.0 * (kVectorBytes / sizeof(Scalar)) * kChains * double(iterations);
}

#if defined(__AVX512BF16__)
double dot_bf16_loop(long iterations) {
  __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
#define DECLARE(k) __m512 c##k = _mm512_setzero_ps();
  ATREX_CHAINS(DECLARE)
#undef DECLARE
  for (long i = 0; i < iterations; ++i) {
#define STEP(k) c##k = _mm512_dpbf16_ps(c##k, a, a); hide(c##k);
    ATREX_CHAINS(STEP)
#undef STEP
  }
  return 64.0 * kChains * double(iterations);
}
#endif

#if defined(__AVX512VNNI__)
double dot_int8_loop(long iterations) {
  __m512i a = _mm512_set1_epi8(1);
#define DECLARE(k) __m512i c##k = _mm512_setzero_si512();
  ATREX_CHAINS(DECLARE)
#undef DECLARE
  for (long i = 0; i < iterations; ++i) {
#define STEP(k) c##k = _mm512_dpbusd_epi32(c##k, a, a); hide(c##k);
    ATREX_CHAINS(STEP)
#undef STEP
  }
  return 128.0 * kChains * double(iterations);
}
#endif

#if defined(__AMX_TILE__) && defined(__linux__)
// Linux grants the tile registers to a process on request (arch_prctl, x86 xstate documentation).
bool amx_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

void configure_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int t = 0; t < 8; ++t) {
    config.bytes_per_row[t] = 64;
    config.rows[t] = 16;
  }
  asm volatile("" : : "r"(&config) : "memory");  // GCC 12 thinks ldtilecfg reads only the first bytes
  _tile_loadconfig(&config);
  alignas(64) char zeros[1024] = {};
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
#endif

#if defined(__AMX_BF16__) && defined(__linux__)
double amx_bf16_loop(long iterations) {
  configure_tiles();
  for (long i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 32 * double(iterations);
}
#endif

#if defined(__AMX_INT8__) && defined(__linux__)
double amx_int8_loop(long iterations) {
  configure_tiles();
  for (long i = 0; i < iterations; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 64 * double(iterations);
}
#endif

typedef double (*Loop)(long);

Loop find_loop(const char* kind) {
  if (!std::strcmp(kind, "vector.fp32")) return fma_loop<float>;
  if (!std::strcmp(kind, "vector.fp64")) return fma_loop<double>;
#if defined(__AVX512FP16__) || defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
  if (!std::strcmp(kind, "vector.fp16")) return fma_loop<_Float16>;
#endif
#if defined(__AVX512BF16__)
  if (!std::strcmp(kind, "dot.bf16")) return dot_bf16_loop;
#endif
#if defined(__AVX512VNNI__)
  if (!std::strcmp(kind, "dot.int8")) return dot_int8_loop;
#endif
#if defined(__AMX_BF16__) && defined(__linux__)
  if (!std::strcmp(kind, "tile.bf16") && amx_granted()) return amx_bf16_loop;
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
  if (!std::strcmp(kind, "tile.int8") && amx_granted()) return amx_int8_loop;
#endif
  return nullptr;
}

}  // namespace

extern "C" {

// FLOP/s of up to `reps` runs of about `seconds` each, on `threads` threads at once and for no longer than about `budget`
// seconds, for a kind of find_loop(). Thread t puts its own rates at flop_per_second[t * reps] and on, 0 where it made no
// run: a thread's best then needs its own CPU undisturbed, not all of them together. Returns the number of threads; 0
// when this build or CPU has no such instruction, or OpenMP did not give as many threads as asked for.
int atrex_peak(const char* kind, int threads, double seconds, int reps, double budget, double* flop_per_second) {
  Loop loop = find_loop(kind);
  if (!loop) return 0;
  loop(1000);
  long iterations = 1000;
  for (double took = 0; took < seconds;) {
    double begin = atrex::now();
    loop(iterations);
    took = atrex::now() - begin;
    if (took < seconds) iterations *= 2;
  }
  int used = threads;
  omp_set_dynamic(0);
  atrex::Gate start(threads);
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    used = omp_get_num_threads();
    if (used == threads) {
      int t = omp_get_thread_num();
      start.pass(0, t);
      double first_begin = atrex::now();
      for (int rep = 0; rep < reps; ++rep) {
        double begin = atrex::now();
        double rate = rep && begin - first_begin > budget ? 0 : loop(iterations);
        flop_per_second[size_t(t) * reps + rep] = rate / (atrex::now() - begin);
      }
    }
  }
  return used == threads ? threads : 0;
}

// Seconds to open and close an empty parallel region, for each of `reps` tries: what a parallel kernel cannot avoid.
void atrex_region(int threads, int reps, double* seconds) {
  for (int rep = 0; rep < reps; ++rep) {
    double begin = atrex::now();
#pragma omp parallel num_threads(threads)
    { asm volatile("" ::: "memory"); }
    seconds[rep] = atrex::now() - begin;
  }
}

}  // extern "C"
