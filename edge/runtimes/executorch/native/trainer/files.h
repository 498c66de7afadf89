// Files read piece by piece, so that no page of them counts as this process's memory, and written with their digest.
#pragma once

#include <cstdint>
#include <string>

#include "sha256.h"

namespace trainer {

class InputFile {
 public:
  // Raises Unable where it cannot be opened.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  // Raises Unable where fewer bytes are there.
  void read(void* out, int64_t offset, int64_t count) const;
  // Size and time of the last change, to tell whether it is the file that was looked at before.
  std::string version() const;
  std::string sha256() const;

 private:
  std::string path_;
  int file_;
};

// Raises std::system_error where it cannot be written.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const void* data, int64_t count);
  int64_t size() const { return size_; }
  std::string close();  // the digest of what was written

 private:
  int file_;
  int64_t size_ = 0;
  Sha256 hash_;
};

}  // namespace trainer
