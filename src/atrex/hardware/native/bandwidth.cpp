// What this CPU's memory can do at best with a cold cache, and the cache flush that timing uses.
//
// Cold cache means: every line of every operand is flushed to memory before each repetition, then the transfer is timed.
// Built by native/__init__.py with -O3 -march=native -fopenmp and called through ctypes.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <omp.h>

#if defined(__x86_64__)
#include <cpuid.h>
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
constexpr size_t kLine = 64;

typedef uint64_t Vec __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes), may_alias));

#if defined(__x86_64__)
__attribute__((target("clflushopt"))) void flush_lines(char* p, char* end) {
  for (; p < end; p += kLine) _mm_clflushopt(p);
  _mm_mfence();
}

bool has_clflushopt() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1);
}
#else
void flush_lines(char*, char*) {}
bool has_clflushopt() { return false; }
#endif

template <bool kStream>
inline void store(Vec* p, Vec v) {
#if defined(__x86_64__)
  if constexpr (kStream) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), reinterpret_cast<__m512i>(v));
#elif defined(__AVX__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(v));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), reinterpret_cast<__m128i>(v));
#endif
    return;
  }
#endif
  *p = v;
}

// One thread's part: `lines` lines, read from `kReads` arrays and written to one (or none), as `kStreams` interleaved
// sequential streams: several streams keep more misses in flight than one does.
template <int kReads, bool kWrite, bool kStream, int kStreams>
uint64_t move(const char* a, const char* b, char* out, size_t lines, size_t ahead) {
  constexpr int kPer = kLine / kVectorBytes;
  size_t each = lines / kStreams;
  Vec acc[kPer];
  for (int v = 0; v < kPer; ++v) acc[v] = Vec{} + 1;
  auto line = [&](size_t at) {
    if (ahead) {
      if (kReads >= 1) __builtin_prefetch(a + (at + ahead) * kLine);
      if (kReads == 2) __builtin_prefetch(b + (at + ahead) * kLine);
      if (kWrite && !kStream) __builtin_prefetch(out + (at + ahead) * kLine, 1);
    }
    for (int v = 0; v < kPer; ++v) {
      size_t offset = at * kLine + size_t(v) * kVectorBytes;
      Vec value = acc[v];
      if (kReads >= 1) value ^= *reinterpret_cast<const Vec*>(a + offset);
      if (kReads == 2) value ^= *reinterpret_cast<const Vec*>(b + offset);
      if (kWrite) store<kStream>(reinterpret_cast<Vec*>(out + offset), value);
      else acc[v] = value;
    }
  };
  for (size_t i = 0; i < each; ++i)
    for (int s = 0; s < kStreams; ++s) line(size_t(s) * each + i);
  for (size_t i = each * kStreams; i < lines; ++i) line(i);
#if defined(__x86_64__)
  if (kStream) _mm_sfence();
#endif
  uint64_t sum = 0;
  for (int v = 0; v < kPer; ++v) sum += acc[v][0];
  return sum;
}

template <int kReads, bool kWrite, bool kStream>
uint64_t move_streams(const char* a, const char* b, char* out, size_t lines, int streams, size_t ahead) {
  if (streams >= 4) return move<kReads, kWrite, kStream, 4>(a, b, out, lines, ahead);
  return move<kReads, kWrite, kStream, 1>(a, b, out, lines, ahead);
}

uint64_t move_pattern(int pattern, bool stream, const char* a, const char* b, char* out, size_t lines, int streams,
                      size_t ahead) {
  switch (pattern) {
    case 0: return move_streams<1, false, false>(a, b, out, lines, streams, ahead);
    case 1: return stream ? move_streams<1, true, true>(a, b, out, lines, streams, ahead)
                          : move_streams<1, true, false>(a, b, out, lines, streams, ahead);
    case 2: return stream ? move_streams<2, true, true>(a, b, out, lines, streams, ahead)
                          : move_streams<2, true, false>(a, b, out, lines, streams, ahead);
    default: return stream ? move_streams<0, true, true>(a, b, out, lines, streams, ahead)
                           : move_streams<0, true, false>(a, b, out, lines, streams, ahead);
  }
}

volatile uint64_t g_sink;

}  // namespace

extern "C" {

// 1 where lines can be flushed one by one from user space, 0 where the caller has to sweep the cache instead.
int atrex_flush_supported() { return has_clflushopt() ? 1 : 0; }

// Evict every cache line of [p, p + bytes) from all caches, writing dirty ones back; returns when that is done.
void atrex_flush(void* p, size_t bytes) {
  if (!bytes || !has_clflushopt()) return;
  char* begin = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t(kLine - 1));
  flush_lines(begin, static_cast<char*>(p) + bytes);
}

// Read and write a scratch buffer once, to displace what the caches held; for CPUs without a flush instruction.
void atrex_sweep(void* p, size_t bytes) {
  char* c = static_cast<char*>(p);
  for (size_t i = 0; i < bytes; i += kLine) c[i] = char(c[i] + 1);
}

// First touch of a fresh buffer, spread over the threads' memory nodes in chunks of 2 MiB.
void atrex_touch(void* p, size_t bytes, int threads) {
  char* c = static_cast<char*>(p);
  const size_t chunk = size_t(2) << 20;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (size_t at = 0; at < bytes; at += chunk) std::memset(c + at, 1, bytes - at < chunk ? bytes - at : chunk);
}

// Time up to `reps` cold transfers, at least two, for no longer than about `budget` seconds. Buffers a, b, out hold `lines` lines of 64 bytes each (b for pattern 2, out for patterns
// 1 to 3). Patterns: 0 read a; 1 a -> out; 2 a ^ b -> out; 3 fill out. `stream`: non-temporal stores. `streams`: 1 or 4
// interleaved streams a thread; `ahead`: software prefetch distance in lines, 0 for none. `scratch` of `scratch_bytes`
// is swept where lines cannot be flushed. Seconds of each repetition go to `seconds`. Returns the number of
// repetitions; 0 when OpenMP did not give as many threads as asked for, and nothing was timed.
int atrex_transfer(const char* a, const char* b, char* out, size_t lines, int pattern, int stream, int streams,
                   int ahead, int threads, int reps, double budget, char* scratch, size_t scratch_bytes, double* seconds) {
  if (lines < size_t(threads)) threads = 1;
  bool flushes = has_clflushopt(), over = false;
  int used = threads, done = 0;
  double first_begin = atrex::now();
  omp_set_dynamic(0);
  atrex::Gate start(threads), stop(threads);
#pragma omp parallel num_threads(threads)
  {
    int t = omp_get_thread_num();
#pragma omp single
    used = omp_get_num_threads();
    if (used == threads) {
      size_t first = lines * t / threads, count = lines * (t + 1) / threads - first;
      const char* pa = a ? a + first * kLine : nullptr;
      const char* pb = b ? b + first * kLine : nullptr;
      char* po = out ? out + first * kLine : nullptr;
      uint64_t sum = 0;
      for (int rep = 0; rep < reps; ++rep) {
        if (flushes) {
          if (pa) flush_lines(const_cast<char*>(pa), const_cast<char*>(pa) + count * kLine);
          if (pb) flush_lines(const_cast<char*>(pb), const_cast<char*>(pb) + count * kLine);
          if (po) flush_lines(po, po + count * kLine);
        } else {
          size_t lo = scratch_bytes * t / threads;
          atrex_sweep(scratch + lo, scratch_bytes * (t + 1) / threads - lo);
        }
        if (t == 0) over = rep >= 2 && atrex::now() - first_begin > budget;
        double begin = start.pass(rep, t);
        if (over) break;
        sum += move_pattern(pattern, stream, pa, pb, po, count, streams, size_t(ahead));
        double end = stop.pass(rep, t);
        if (t == 0) {
          seconds[rep] = end - begin;
          done = rep + 1;
        }
      }
      g_sink = sum;
    }
  }
  return done;
}

}  // extern "C"
