#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

namespace {

int64_t status_bytes(const char* field) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (!file) return 0;
  char line[256];
  long long kilobytes = 0;
  while (std::fgets(line, sizeof line, file))
    if (std::strncmp(line, field, std::strlen(field)) == 0) std::sscanf(line + std::strlen(field), "%lld", &kilobytes);
  std::fclose(file);
  return kilobytes * 1024;
}

struct Mapping {
  unsigned long start = 0, end = 0, inode = 0;
  char permissions[8] = {};
  long resident = 0, changed = 0;
  bool is_unchanged_file() const { return resident > 0 && inode > 0 && !std::strchr(permissions, 'w') && changed == 0; }
};

}  // namespace

int64_t peak_bytes() { return status_bytes("VmHWM:"); }

int64_t resident_bytes() { return status_bytes("VmRSS:"); }

void release_startup_pages() {
  std::FILE* file = std::fopen("/proc/self/smaps", "r");  // may be hidden by a container
  if (!file) return;
  std::vector<Mapping> mappings;
  char line[4096];
  while (std::fgets(line, sizeof line, file)) {
    Mapping found;
    unsigned long offset;
    char device[32];
    if (std::sscanf(line, "%lx-%lx %7s %lx %31s %lu", &found.start, &found.end, found.permissions, &offset, device,
                    &found.inode) == 6) {
      mappings.push_back(found);
      continue;
    }
    if (mappings.empty()) continue;
    long kilobytes = 0;
    char name[64];
    if (std::sscanf(line, "%63[A-Za-z_]: %ld kB", name, &kilobytes) != 2) continue;
    const std::string field = name;
    if (field == "Rss") mappings.back().resident = kilobytes;
    if (field == "Private_Dirty" || field == "Shared_Dirty" || field == "Anonymous" || field == "Swap")
      mappings.back().changed += kilobytes;
  }
  std::fclose(file);
  for (const Mapping& mapping : mappings)
    if (mapping.is_unchanged_file())
      ::madvise(reinterpret_cast<void*>(mapping.start), mapping.end - mapping.start, MADV_DONTNEED);
}

}  // namespace trainer
