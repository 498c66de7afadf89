#include "feature_records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace trainer {

namespace {

constexpr int64_t kPlaceBytes = 8, kNone = -1;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

FeatureRecords::FeatureRecords(const std::string& path, std::unique_ptr<Sealing> sealing, int64_t examples, int64_t bytes,
                               int64_t limit_bytes)
    : sealing_(std::move(sealing)), bytes_(bytes), head_bytes_(kPlaceBytes + sealing_->size()),
      record_bytes_(head_bytes_ + bytes), most_(limit_bytes / record_bytes_), slots_(examples, kNone), head_(head_bytes_),
      file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (file_ < 0) fail(path);
  try {
    read_places();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

FeatureRecords::~FeatureRecords() { ::close(file_); }

// What is beyond the limit, half written or of no example is room.
void FeatureRecords::read_places() {
  struct stat found {};
  if (::fstat(file_, &found) != 0) fail("features");
  count_ = std::min<int64_t>(found.st_size / record_bytes_, most_);
  if (::ftruncate(file_, count_ * record_bytes_) != 0) fail("features");
  for (int64_t slot = 0; slot < count_; ++slot) {
    uint64_t place = 0;
    if (::pread(file_, &place, sizeof place, slot * record_bytes_) != sizeof place) fail("features");
    if (place < slots_.size() && slots_[place] == kNone)
      slots_[place] = slot;
    else
      free_.push_back(slot);
  }
}

bool FeatureRecords::read(const Example& example, uint8_t* out) {
  const int64_t slot = slots_.at(example.place);
  if (slot == kNone) return false;
  iovec parts[] = {{head_.data(), head_.size()}, {out, static_cast<size_t>(bytes_)}};
  const ssize_t count = ::preadv(file_, parts, 2, slot * record_bytes_);
  if (count < 0) return false;
  const bool is_there = count == record_bytes_ && std::memcmp(head_.data(), &example.place, kPlaceBytes) == 0 &&
                        sealing_->open(example, head_.data() + kPlaceBytes, out, bytes_);
  if (!is_there) {
    slots_[example.place] = kNone;
    free_.push_back(slot);
  }
  return is_there;
}

void FeatureRecords::write(const Example& example, const uint8_t* features) {
  int64_t& place = slots_.at(example.place);
  const int64_t slot = free_.empty() ? count_ : free_.back();
  if (place != kNone || slot >= most_) return;
  kept_.assign(features, features + bytes_);
  std::memcpy(head_.data(), &example.place, kPlaceBytes);
  sealing_->close(example, kept_, head_.data() + kPlaceBytes);
  iovec parts[] = {{head_.data(), head_.size()}, {kept_.data(), kept_.size()}};
  if (::pwritev(file_, parts, 2, slot * record_bytes_) != record_bytes_) {
    std::fprintf(stderr, "features of %lld examples are kept, and no more: the disk takes none\n", static_cast<long long>(count_));
    most_ = 0;
    if (::ftruncate(file_, count_ * record_bytes_) != 0) return;  // half a record is none
    return;
  }
  place = slot;
  if (free_.empty())
    ++count_;
  else
    free_.pop_back();
}

}  // namespace trainer
