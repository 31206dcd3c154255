// Shared by bandwidth.cpp and peaks.cpp: the clock, and a gate that releases all threads at one instant.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace atrex {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Waits a little. Yields the CPU only after milliseconds: on a busy machine threads that yield at once never run at the
// same time, and transfers that need all of them are never timed undisturbed.
inline void relax(int& turns) {
  if (++turns % (1 << 17) == 0) std::this_thread::yield();
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Releases all threads at once and lets thread 0 read the clock when every thread is there: an OpenMP region costs
// microseconds to open, which would hide what memory can do with small operands.
class Gate {
 public:
  explicit Gate(int threads) : threads_(threads) {}

  // Called by every thread with the same `round` (0, 1, ...). Thread 0 gets the time at which all had arrived. What
  // thread 0 wrote before the call, the others see after it.
  double pass(int round, int thread) {
    double at = 0;
    int turns = 0;
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    if (thread == 0) {
      while (arrived_.load(std::memory_order_acquire) < threads_ * (round + 1)) relax(turns);
      at = now();
      opened_.store(round + 1, std::memory_order_release);
    } else {
      while (opened_.load(std::memory_order_acquire) < round + 1) relax(turns);
    }
    return at;
  }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<int> opened_{0};
  int threads_;
};

}  // namespace atrex
