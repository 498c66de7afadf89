// Resident memory of this process, and start-up pages given back (edge/system/startup_pages.py says why).
#pragma once

#include <cstdint>

namespace trainer {

int64_t peak_bytes();
int64_t resident_bytes();
// Gives resident pages of unchanged files back; whatever is needed again is mapped again from the page cache.
void release_startup_pages();

}  // namespace trainer
