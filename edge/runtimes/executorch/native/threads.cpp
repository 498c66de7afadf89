#include "threads.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

namespace apportion {
namespace {

thread_local Threads* in_use = nullptr;

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
  {
    const std::lock_guard lock(mutex_);
    chunk_ = chunk, work_ = work, count_ = count;
    next_.store(0, std::memory_order_relaxed);
    is_open_ = true;
  }
  const auto wanted = std::min<int64_t>(count - 1, static_cast<int64_t>(others_.size()));
  for (int64_t i = 0; i < wanted; ++i) job_.notify_one();
  claim(chunk, work, count);
  // Whoever wakes from here on finds no job; whoever is at one has claimed its last chunk.
  std::unique_lock lock(mutex_);
  is_open_ = false;
  done_.wait(lock, [this] { return at_work_ == 0; });
}

void Threads::claim(Chunk chunk, const void* work, int64_t count) {
  while (true) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    chunk(work, i);
  }
}

void Threads::wait_for_jobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    job_.wait(lock, [this] { return is_open_ || ends_; });
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
