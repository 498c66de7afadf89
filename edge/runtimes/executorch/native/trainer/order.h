// An order in flat form: every name resolved by the supervisor, so that nothing complex is parsed here. The layout is
// that of edge/flat_orders, which writes it: 64-bit little-endian integers and doubles, texts and
// lists behind their length, fields in this order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

// Element types, numbered as in edge/flat_orders/writing.py.
enum class Kind : int64_t { Float32, Int64, Bool, Int32, UInt8, Float64, Int8 };
int64_t bytes_of(Kind kind);

// A state tensor and where its first value lies; an empty path: zeros.
struct Tensor {
  Kind kind;
  std::vector<int64_t> shape;
  std::string path;
  int64_t offset;
  int64_t elements() const;
  int64_t bytes() const { return elements() * bytes_of(kind); }
};

// Consecutive examples in a file.
struct Part {
  std::string path;
  int64_t offset, count;
};

// One array of the local data.
struct Array {
  Kind kind;
  std::vector<int64_t> shape;  // of an example, as it lies in the files
  std::vector<Part> parts;
  int64_t limit;  // whole numbers are 0 .. limit - 1; 0: unchecked
};

// What becomes of an example's values: (x * scale - mean) / std, with a mean and a deviation for each channel.
struct Input {
  Kind kind;                   // Float32 or Int64
  std::vector<int64_t> shape;  // of an example
  int64_t channels_last;       // the files have the first dimension of `shape` last
  double scale;
  int64_t inner;  // consecutive values of one channel
  std::vector<double> mean, std;
  int64_t flips, padding;
};

enum class Feed : int64_t { State, Input, Target, LabelMask, Fixed, Counted, Draw, Features };

struct ProgramInput {
  Feed feed;
  int64_t state;  // of State
  Kind kind;
  std::vector<int64_t> shape;  // of others; the batch dimension is -1
  double value;                // of Fixed; of Draw the bound of k
  std::string name;            // of Draw
};

// Sum and Next take a state tensor, Scalar one of the order's scalars.
enum class Result : int64_t { Gradient, Next, Scalar, Unused, Sum, Features };

struct ProgramOutput {
  Result result;
  int64_t index;
};

// How one parameter is moved; places of state tensors, -1: there is none.
struct Move {
  int64_t value, momentum, mean, square, squares, mask;
  int64_t sum;  // of the gradients of micro-batches: the gradient itself, which is then set back to zero
  double lr, decay;
};

enum class Optimizer : int64_t { None, Sgd, Adam, AdamW };

struct Rule {
  Optimizer kind;
  int64_t nesterov, clips;
  double momentum, beta1, beta2, eps, clip_norm;
  int64_t step;  // the state tensor that counts them
  std::vector<Move> moves;  // in the order of the gradients
};

struct Program {
  std::string name, path, sha256;  // without a path it is the rule alone
  int64_t batch, most;             // examples: exactly so many (0: any), and at most
  std::vector<ProgramInput> inputs;
  std::vector<ProgramOutput> outputs;
  Rule rule;
};

// One entry of the schedule: the programs of its step, each of the first on so many parts of the batch.
struct Turn {
  std::vector<int64_t> programs;
  int64_t parts, advances;
};

struct Scalar {
  std::string name, metric;  // in an evaluation, and as a mean over steps
  int64_t counts;  // it counts targets, so that its mean is per target
};

// A file of tensors: its header as the supervisor made it, then the tensors' bytes.
struct TensorFile {
  std::string path, header;
  std::vector<int64_t> tensors;
};

struct HeldOut {
  int64_t is_asked;
  double share;
  uint64_t seed;
  int64_t least, program;  // -1: nothing scores
  int64_t batch;
};

// The only examples that are trained on; a size of 0: all.
struct FixedSample {
  int64_t size;
  uint64_t seed;
};

// How features are rounded before steps read them.
enum class Rounded : int64_t { No, Float16, Int8 };

// What frozen layers give for each example, which steps read in place of the input.
struct Features {
  int64_t program;   // that gives them; -1: no step reads any
  int64_t elements;  // of one example
  Rounded rounded;
  int64_t most;              // examples that are computed at a time
  std::string path;          // of those that are kept; empty: none are
  std::string key, cipher;   // what they are computed with; what they are encrypted with, empty: they are not
  int64_t limit_bytes;       // of the file
};

struct Order {
  std::string assignment;
  double progress_s;
  int64_t threads;
  std::vector<Tensor> state;
  Array x, y;
  Input input;
  int64_t classes;
  int64_t batch, last_batch;  // 0 drop, 1 keep, 2 wrap
  std::string data_seed;
  int64_t epochs, steps;
  std::vector<Program> programs;
  std::vector<Turn> turns;
  std::vector<Scalar> scalars;
  HeldOut held_out;
  FixedSample sample;
  Features features;
  int64_t reports_labels;
  std::vector<TensorFile> files;  // the update first
};

// Raises Unable where it is cut short, or of another release.
Order read_order(const std::vector<uint8_t>& data);

}  // namespace trainer
