#include "replies.h"

#include <unistd.h>

#include <bit>
#include <cerrno>

namespace trainer {

namespace {

// First bytes of msgpack's types.
constexpr uint8_t kFixedText = 0xa0, kText32 = 0xdb, kInt64 = 0xd3, kFloat64 = 0xcb, kFalse = 0xc2, kTrue = 0xc3;
constexpr uint8_t kMap16 = 0xde, kMap32 = 0xdf, kArray32 = 0xdd;

}  // namespace

Message::Message(const std::string& type) {
  if (!type.empty()) text("type", type);
}

Message& Message::text(const char* name, const std::string& value) {
  key(name);
  put_text(value);
  return *this;
}

Message& Message::integer(const char* name, int64_t value) {
  key(name);
  put_integer(value);
  return *this;
}

Message& Message::real(const char* name, double value) {
  key(name);
  put_real(value);
  return *this;
}

Message& Message::truth(const char* name, bool value) {
  key(name);
  body_ += static_cast<char>(value ? kTrue : kFalse);
  return *this;
}

Message& Message::integers(const char* name, const std::vector<int64_t>& values) {
  key(name);
  body_ += static_cast<char>(kArray32);
  put_bytes(values.size(), 4);
  for (const int64_t value : values) put_integer(value);
  return *this;
}

Message& Message::reals(const char* name, const std::map<std::string, double>& values) {
  key(name);
  body_ += static_cast<char>(kMap32);
  put_bytes(values.size(), 4);
  for (const auto& [field, value] : values) put_text(field), put_real(value);
  return *this;
}

Message& Message::message(const char* name, const Message& value) {
  key(name);
  body_ += value.encoded();
  return *this;
}

void Message::send(int file) const {
  const std::string body = encoded();
  std::string frame;
  for (int i = 0; i < 8; ++i) frame += static_cast<char>(body.size() >> (56 - 8 * i));
  frame += body;
  for (size_t at = 0; at < frame.size();) {
    const ssize_t done = ::write(file, frame.data() + at, frame.size() - at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) ::_exit(0);
    at += done;
  }
}

void Message::key(const char* name) {
  ++fields_;
  put_text(name);
}

void Message::put_text(const std::string& value) {
  if (value.size() < 32) {
    body_ += static_cast<char>(kFixedText | value.size());
  } else {
    body_ += static_cast<char>(kText32);
    put_bytes(value.size(), 4);
  }
  body_ += value;
}

void Message::put_integer(int64_t value) {
  body_ += static_cast<char>(kInt64);
  put_bytes(static_cast<uint64_t>(value), 8);
}

void Message::put_real(double value) {
  body_ += static_cast<char>(kFloat64);
  put_bytes(std::bit_cast<uint64_t>(value), 8);
}

void Message::put_bytes(uint64_t value, int count) {
  for (int i = count - 1; i >= 0; --i) body_ += static_cast<char>(value >> 8 * i);
}

std::string Message::encoded() const {
  std::string found;
  found += static_cast<char>(kMap16);
  found += static_cast<char>(fields_ >> 8);
  found += static_cast<char>(fields_);
  return found + body_;
}

}  // namespace trainer
