#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "errors.h"

namespace trainer {

namespace {

constexpr int64_t kPiece = 1 << 16;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0) throw Unable(path + " cannot be opened: " + std::strerror(errno));
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read(void* out, int64_t offset, int64_t count) const {
  auto* at = static_cast<uint8_t*>(out);
  while (count > 0) {
    const ssize_t found = ::pread(file_, at, count, offset);
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) throw Unable(path_ + " ends early, or cannot be read");
    at += found, offset += found, count -= found;
  }
}

std::string InputFile::version() const {
  struct stat found {};
  if (::fstat(file_, &found) != 0) throw Unable(path_ + " cannot be looked at");
  return path_ + " " + std::to_string(found.st_ino) + " " + std::to_string(found.st_size) + " " +
         std::to_string(found.st_mtim.tv_sec) + "." + std::to_string(found.st_mtim.tv_nsec);
}

std::string InputFile::sha256() const {
  struct stat found {};
  if (::fstat(file_, &found) != 0) throw Unable(path_ + " cannot be looked at");
  std::vector<uint8_t> piece(kPiece);
  Sha256 hash;
  for (int64_t at = 0; at < found.st_size; at += kPiece) {
    const int64_t count = std::min<int64_t>(kPiece, found.st_size - at);
    read(piece.data(), at, count);
    hash.add(piece.data(), count);
  }
  return hash.hex();
}

OutputFile::OutputFile(const std::string& path)
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (file_ < 0) fail(path);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
}

void OutputFile::write(const void* data, int64_t count) {
  hash_.add(data, count);
  size_ += count;
  const auto* at = static_cast<const uint8_t*>(data);
  while (count > 0) {
    const ssize_t done = ::write(file_, at, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    at += done, count -= done;
  }
}

std::string OutputFile::close() {
  const int file = file_;
  file_ = -1;
  if (::close(file) != 0) fail("close");
  return hash_.hex();
}

}  // namespace trainer
