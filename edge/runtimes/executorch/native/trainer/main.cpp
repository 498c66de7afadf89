// PROGRAM PARENT: a child process that carries orders out as `python -m edge.trainer` does, and is little more
// than the runtime and one artifact. It reads flat orders from stdin and answers on stdout until its supervisor closes
// the pipe or dies. A native crash or a kernel kill ends this process only, and the supervisor reports it. PROGRAM hello:
// says what the Python trainer says when it is ready, its own resident memory before any order among it, and ends.
#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "errors.h"
#include "files.h"
#include "library.h"
#include "memory.h"
#include "order.h"
#include "replies.h"
#include "session.h"
#include "steps.h"

namespace {

using namespace trainer;

constexpr uint64_t kMostBytes = 8 << 20;  // of an order
constexpr unsigned kWriteAgainS = 2;      // between tries to write an update to a disk that is full
// Code and tables of the runtime that any step touches and starting does not. Source: measured, x86-64, artifacts whose
// step takes nothing to speak of.
constexpr int64_t kStepPages = 2 << 20;
constexpr int kLarge = 1 << 20;  // bytes
const char* const kUnable = "trainer-unable";
const char* const kOutOfMemory = "out-of-memory";

bool read_all(void* out, size_t count) {
  auto* at = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t found = ::read(STDIN_FILENO, at, count);
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) return false;
    at += found, count -= found;
  }
  return true;
}

// Orders that came; the process ends when the pipe is closed, even in mid-training.
class Requests {
 public:
  Requests() : reader_([this] { read(); }) { reader_.detach(); }
  std::vector<uint8_t> next() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this] { return !waiting_.empty(); });
    std::vector<uint8_t> found = std::move(waiting_.front());
    waiting_.pop_front();
    return found;
  }

 private:
  void read() {
    uint8_t head[8];
    while (read_all(head, sizeof head)) {
      uint64_t length = 0;
      for (const uint8_t byte : head) length = length << 8 | byte;
      std::vector<uint8_t> body(length <= kMostBytes ? length : 0);
      if (length > kMostBytes || !read_all(body.data(), body.size())) break;
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(body));
      came_.notify_one();
    }
    ::_exit(0);
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::vector<uint8_t>> waiting_;
  std::thread reader_;
};

struct Written {
  std::string digest;
  int64_t size;
};

Written write_file(const TensorFile& described, const Order& order, const Session& session) {
  OutputFile file(described.path);
  file.write(described.header.data(), static_cast<int64_t>(described.header.size()));
  for (const int64_t tensor : described.tensors) file.write(session.value(tensor), order.state[tensor].bytes());
  const int64_t size = file.size();
  return {file.close(), size};
}

// Of the update, when the disk takes all files: a training is not lost for that.
Written write_files(const Order& order, const Session& session, int out) {
  while (true) {
    try {
      for (size_t i = order.files.size(); i > 1; --i) write_file(order.files[i - 1], order, session);
      return write_file(order.files[0], order, session);
    } catch (const std::system_error& error) {
      if (error.code().value() != ENOSPC && error.code().value() != EDQUOT) throw;
      for (const TensorFile& file : order.files) ::unlink(file.path.c_str());  // somebody else may have room
      Message("Storing")
          .text("assignment_id", order.assignment)
          .text("reason", std::string("the update waits in memory for room on the disk: ") + error.what())
          .send(out);
      ::sleep(kWriteAgainS);
    }
  }
}

void carry_out_order(const Order& order, Loaded& loaded, int64_t idle_bytes, int out) {
  const double cpu_begun = processor_s();
  Session session(order, loaded);
  timespec last{};
  ::clock_gettime(CLOCK_MONOTONIC, &last);
  const auto progress = [&](int64_t step, int64_t total, double loss) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const double since = static_cast<double>(now.tv_sec - last.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - last.tv_nsec);
    if (step != 1 && since < order.progress_s) return;
    last = now;
    Message("Progress")
        .text("assignment_id", order.assignment)
        .integer("step", step)
        .integer("total_steps", total)
        .real("loss", loss)
        .send(out);
  };
  const Outcome outcome = carry_out(order, session, progress);
  const Written update = write_files(order, session, out);
  Message done("Trained");
  done.text("assignment_id", order.assignment)
      .text("digest", update.digest)
      .integer("size", update.size)
      .integer("encoded_size", update.size)
      .integer("num_examples", outcome.num_examples)
      .integer("steps", outcome.steps)
      .real("loss", outcome.loss)
      .reals("metrics", outcome.metrics)
      .real("step_ms_p50", outcome.step_ms_p50)
      .real("step_ms_p95", outcome.step_ms_p95)
      .real("step_cpu_ms_p50", outcome.step_cpu_ms_p50)
      .integer("peak_bytes", peak_bytes())
      .integer("idle_bytes", idle_bytes)
      .truth("torch_loaded", false)
      .integer("threads", order.threads)
      .real("cpu_s", processor_s() - cpu_begun);
  if (order.reports_labels) done.integers("labels", outcome.labels);
  if (outcome.evaluation) {
    Message evaluation("");
    evaluation.integer("examples", outcome.evaluation->examples)
        .integer("targets", outcome.evaluation->targets)
        .reals("sums", outcome.evaluation->sums);
    done.message("evaluation", evaluation);
  }
  done.send(out);
}

void answer(const std::vector<uint8_t>& request, Loaded& loaded, int64_t idle_bytes, int out) {
  std::string assignment;
  const auto failed = [&](const std::string& code, const std::string& reason) {
    Message("Failed")
        .text("assignment_id", assignment)
        .text("code", code)
        .text("reason", reason)
        .integer("peak_bytes", peak_bytes())
        .send(out);
  };
  try {
    const Order order = read_order(request);
    assignment = order.assignment;
    carry_out_order(order, loaded, idle_bytes, out);
  } catch (const Unable& error) {
    failed(kUnable, error.what());
  } catch (const Refused& error) {
    failed(error.code, error.what());
  } catch (const std::bad_alloc&) {
    failed(kOutOfMemory, "memory could not be had");
  } catch (const std::exception& error) {
    failed("trainer-failed", error.what());
  }
}

// Densities are told as in edge/runtimes/executorch/library.py, to two places.
void say_hello(int64_t idle_bytes) {
  const auto density = [](int kind) { return std::round(std::min(1.0, apportion_crossover(kind)) * 100.0) / 100.0; };
  Message("Ready")
      .text("runtime", "executorch")
      .text("version", "")
      .integer("rss_bytes", idle_bytes)
      .reals("sparse_below", {{"linear", density(0)}, {"convolution", density(1)}})
      .send(STDOUT_FILENO);
}

}  // namespace

int main(int count, char** words) {
  const int64_t idle_bytes = resident_bytes() + kStepPages;
  if (count != 2) return 2;
  if (words[1] == std::string("hello")) {
    say_hello(idle_bytes);
    return 0;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != std::atoi(words[1])) return 1;
  // Interrupts from a terminal reach the whole process group; the supervisor decides what they mean.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  // Native code may print to stdout: keep the pipe to ourselves and give everybody else stderr.
  const int out = ::dup(STDOUT_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  release_startup_pages();
#ifdef M_MMAP_THRESHOLD
  // What is large comes from the system and goes back to it: programs that take turns leave no holes.
  ::mallopt(M_MMAP_THRESHOLD, kLarge);
#endif
  Loaded loaded;
  Requests requests;
  while (true) answer(requests.next(), loaded, idle_bytes, out);
}
