// Work shared out over a session's threads. Chunks are cut by shapes alone and each writes what no other does, so results
// are the same bits whatever the number of threads and whichever of them a chunk fell to. See threads.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace apportion {

// The threads of one session beside the caller's own. Between two jobs they look for the next one, but not for long, and
// then sleep: on busy processors a thread that goes on looking takes the time of one that works.
class Threads {
 public:
  // others: threads beside the caller's own. Fewer where the system gives no more.
  explicit Threads(int others);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  using Chunk = void (*)(const void* work, int64_t index);
  // Calls chunk(work, i) for every i of 0 .. count - 1, once each; back when all are done.
  void run(int64_t count, Chunk chunk, const void* work);

 private:
  void wait_for_jobs();
  void claim(Chunk chunk, const void* work, int64_t count);

  std::vector<std::thread> others_;
  std::mutex mutex_;
  std::condition_variable job_, done_;
  // Of the last job; it is open until all its chunks are claimed.
  Chunk chunk_ = nullptr;
  const void* work_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int> at_work_ = 0;
  std::atomic<bool> is_open_ = false;
  bool ends_ = false;
  int asleep_ = 0;
};

// While one of these lives, for_chunks() on this thread uses `threads` (null: only this thread).
class ThreadsInUse {
 public:
  explicit ThreadsInUse(Threads* threads);
  ~ThreadsInUse();

 private:
  Threads* before_;
};

// The threads that for_chunks() uses here; null: none beside this one.
Threads* threads_in_use();

// f(i) for every i of 0 .. count - 1. Inside of a chunk everything runs on its own thread.
template <class F>
inline void for_chunks(int64_t count, const F& f) {
  Threads* threads = count > 1 ? threads_in_use() : nullptr;
  if (threads == nullptr) {
    for (int64_t i = 0; i < count; ++i) f(i);
    return;
  }
  threads->run(count, [](const void* work, int64_t i) { (*static_cast<const F*>(work))(i); }, &f);
}

// f(begin, end) for 0 .. n in ranges of `each`, the last one shorter.
template <class F>
inline void for_ranges(int64_t n, int64_t each, const F& f) {
  for_chunks((n + each - 1) / each, [&](int64_t i) { f(i * each, std::min(n, (i + 1) * each)); });
}

// Floats that are worth a chunk of a loop over memory.
constexpr int64_t kFloatsPerChunk = 1 << 15;

// f(begin, end) for the floats of a loop without sums; begins are multiples of every vector's width.
template <class F>
inline void for_floats(int64_t n, const F& f) {
  for_ranges(n, kFloatsPerChunk, f);
}

// f(offset, count) for the vectors of n floats.
template <class F>
inline void each_vector(int64_t n, const F& f) {
  for_floats(n, [&](int64_t begin, int64_t end) {
    for_vectors(end - begin, [&](int64_t i, int64_t count) { f(begin + i, count); });
  });
}

// f(begin, end) for rows of `width` floats each.
template <class F>
inline void for_rows(int64_t rows, int64_t width, const F& f) {
  for_ranges(rows, std::max<int64_t>(1, kFloatsPerChunk / std::max<int64_t>(1, width)), f);
}

}  // namespace apportion
