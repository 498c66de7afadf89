// Why an order is not carried out here, by whose fault it is; both become a reply, never the end of the process.
#pragma once

#include <stdexcept>
#include <string>

namespace trainer {

// Nobody's fault: something that only the other trainer can do, or whose error it tells better.
struct Unable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An order that no trainer could carry out; code as the supervisor's errors have them.
struct Refused : std::runtime_error {
  Refused(std::string code, const std::string& reason) : std::runtime_error(reason), code(std::move(code)) {}
  std::string code;
};

}  // namespace trainer
