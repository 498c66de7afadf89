// Randomness as every agent draws it: keyed streams over SplitMix64 (edge/contracts/streams.py, docs/wire-protocol.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

// Output i (from 0) of SplitMix64 started at seed.
uint64_t splitmix64(uint64_t seed, uint64_t i);

// Seed of the stream for (seed, purpose, round, device); the seed as the decimal text it is hashed in.
uint64_t stream_seed(const std::string& seed, const std::string& purpose, int64_t round, const std::string& device);

// Output i as a double in [0, 1): its top 53 bits.
double uniform(uint64_t seed, uint64_t i);

// A Fisher-Yates shuffle of 0 .. count - 1.
std::vector<int64_t> permutation(uint64_t seed, int64_t count);

// A draw of `count` elements: k / 2^24 as floats, or whether k < below as bytes; k the top 24 bits of each 32-bit lane.
void draw_floats(uint64_t seed, int64_t count, float* out);
void draw_bools(uint64_t seed, int64_t count, uint32_t below, uint8_t* out);

}  // namespace trainer
