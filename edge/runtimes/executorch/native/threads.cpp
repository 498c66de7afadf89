#include "threads.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <system_error>

namespace apportion {
namespace {

thread_local Threads* in_use = nullptr;

constexpr int64_t kLongestLook = 20'000;  // nanoseconds; a thread that sleeps takes two or three times as long to wake up
constexpr int kLooksPerClock = 16;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until is_true(), but not for long; whether it is.
template <class F>
bool looks_for(const F& is_true) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  const auto end = now() + std::chrono::nanoseconds(kLongestLook);
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (is_true()) return true;
      pause();
    }
  } while (now() < end);
  return is_true();
}

}  // namespace

ThreadsInUse::ThreadsInUse(Threads* threads) : before_(in_use) { in_use = threads; }
ThreadsInUse::~ThreadsInUse() { in_use = before_; }
Threads* threads_in_use() { return in_use; }

Threads::Threads(int others) {
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int i = 0; i < others; ++i) others_.emplace_back([this] { wait_for_jobs(); });
  } catch (const std::system_error&) {
    // Those that there are do the work.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Threads::~Threads() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  job_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Threads::run(int64_t count, Chunk chunk, const void* work) {
  const ThreadsInUse alone(nullptr);
  int64_t wanted = 0;  // of those that sleep
  {
    const std::lock_guard lock(mutex_);
    wanted = std::min<int64_t>(count - 1 - (static_cast<int64_t>(others_.size()) - asleep_), asleep_);
    chunk_ = chunk, work_ = work, count_ = count;
    next_.store(0, std::memory_order_relaxed);
    is_open_ = true;
  }
  for (int64_t i = 0; i < wanted; ++i) job_.notify_one();
  claim(chunk, work, count);
  // Whoever comes from here on finds no job; whoever is at one has claimed its last chunk.
  {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  const auto is_done = [this] { return at_work_ == 0; };
  if (looks_for(is_done)) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, is_done);
}

void Threads::claim(Chunk chunk, const void* work, int64_t count) {
  while (true) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    chunk(work, i);
  }
}

void Threads::wait_for_jobs() {
  while (true) {
    looks_for([this] { return is_open_.load(); });
    std::unique_lock lock(mutex_);
    ++asleep_;
    job_.wait(lock, [this] { return is_open_ || ends_; });
    --asleep_;
    if (ends_) return;
    const Chunk chunk = chunk_;
    const void* work = work_;
    const int64_t count = count_;
    ++at_work_;
    lock.unlock();
    claim(chunk, work, count);
    lock.lock();
    is_open_ = false;  // all its chunks are claimed
    if (--at_work_ == 0) done_.notify_one();
  }
}

}  // namespace apportion
