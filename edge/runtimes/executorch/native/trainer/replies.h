// What the trainer says: the messages of edge/supervisor/trainer_messages.py in msgpack, each behind its length.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainer {

// A map as msgpack, written field by field.
class Message {
 public:
  explicit Message(const std::string& type);
  Message& text(const char* name, const std::string& value);
  Message& integer(const char* name, int64_t value);
  Message& real(const char* name, double value);
  Message& truth(const char* name, bool value);
  Message& integers(const char* name, const std::vector<int64_t>& values);
  Message& reals(const char* name, const std::map<std::string, double>& values);
  Message& message(const char* name, const Message& value);
  // Behind its length; the process ends where nobody listens.
  void send(int file) const;

 private:
  void key(const char* name);
  void put_text(const std::string& value);
  void put_integer(int64_t value);
  void put_real(double value);
  void put_bytes(uint64_t value, int count);
  std::string encoded() const;

  uint16_t fields_ = 0;
  std::string body_;
};

}  // namespace trainer
