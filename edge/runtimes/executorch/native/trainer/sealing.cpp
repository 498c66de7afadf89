#include "sealing.h"

#include <dlfcn.h>
#include <sys/random.h>

#include <array>
#include <cstring>

#include "errors.h"

namespace trainer {

namespace {

constexpr int64_t kKeyBytes = 8, kSealBytes = 16, kNonceBytes = 12, kTagBytes = 16;
constexpr int kCipherKeyBytes = 32;
constexpr int kPlaces = 8;  // bytes that are taken at a time

using Tables = std::array<std::array<uint32_t, 256>, kPlaces>;

constexpr Tables crc_tables() {
  Tables found{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0u);
    found[0][byte] = value;
  }
  for (int place = 1; place < kPlaces; ++place)
    for (uint32_t byte = 0; byte < 256; ++byte)
      found[place][byte] = found[place - 1][byte] >> 8 ^ found[0][found[place - 1][byte] & 0xff];
  return found;
}

constexpr Tables kTables = crc_tables();

class Checksum : public Sealing {
 public:
  explicit Checksum(const std::string& key) : key_(key) {
    if (static_cast<int64_t>(key.size()) < kKeyBytes) throw Unable("features have a key that is too short");
  }
  int64_t size() const override { return kSealBytes; }
  void close(const Example& example, std::vector<uint8_t>& kept, uint8_t* seal) override {
    write(example, kept.data(), static_cast<int64_t>(kept.size()), seal);
  }
  bool open(const Example& example, const uint8_t* seal, uint8_t* kept, int64_t bytes) override {
    uint8_t expected[kSealBytes];
    write(example, kept, bytes, expected);
    return std::memcmp(seal, expected, kSealBytes) == 0;
  }

 private:
  void write(const Example& example, const uint8_t* kept, int64_t bytes, uint8_t* seal) const {
    const uint32_t sums[2] = {crc32(example.data, example.bytes), crc32(kept, bytes)};
    std::memcpy(seal, sums, sizeof sums);
    std::memcpy(seal + sizeof sums, key_.data(), kKeyBytes);
  }

  std::string key_;
};

// What is used of OpenSSL, whose library comes with nearly every Python; found when the first device needs it.
struct OpenSsl {
  void* (*context)();
  void (*free)(void*);
  const void* (*chacha20_poly1305)();
  int (*init)(void*, const void*, void*, const uint8_t*, const uint8_t*, int);
  int (*update)(void*, uint8_t*, int*, const uint8_t*, int);
  int (*final)(void*, uint8_t*, int*);
  int (*control)(void*, int, int, void*);
};

constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_GET_TAG and _SET_TAG of openssl/evp.h

const OpenSsl& openssl() {
  static const OpenSsl found = [] {
    void* library = nullptr;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"})
      if ((library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    OpenSsl calls{};
    const auto take = [&](auto& call, const char* name) {
      if (!library || !(call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name))))
        throw Unable("features are kept encrypted, and libcrypto is not there");
    };
    take(calls.context, "EVP_CIPHER_CTX_new"), take(calls.free, "EVP_CIPHER_CTX_free");
    take(calls.chacha20_poly1305, "EVP_chacha20_poly1305"), take(calls.init, "EVP_CipherInit_ex");
    take(calls.update, "EVP_CipherUpdate"), take(calls.final, "EVP_CipherFinal_ex");
    take(calls.control, "EVP_CIPHER_CTX_ctrl");
    return calls;
  }();
  return found;
}

class Encryption : public Sealing {
 public:
  explicit Encryption(const std::string& key) : calls_(openssl()), context_(calls_.context()), key_(key) {
    if (!context_ || key.size() != kCipherKeyBytes) throw Unable("features cannot be encrypted with that key");
  }
  ~Encryption() override { calls_.free(context_); }
  Encryption(const Encryption&) = delete;
  Encryption& operator=(const Encryption&) = delete;
  int64_t size() const override { return kNonceBytes + kTagBytes; }

  void close(const Example& example, std::vector<uint8_t>& kept, uint8_t* seal) override {
    if (::getrandom(seal, kNonceBytes, 0) != kNonceBytes) throw Unable("features cannot be encrypted: no random numbers");
    const bool is_done = run(example, seal, kept.data(), static_cast<int64_t>(kept.size()), 1, nullptr) &&
                         calls_.control(context_, kGetTag, kTagBytes, seal + kNonceBytes) == 1;
    if (!is_done) throw Unable("features cannot be encrypted");
  }
  bool open(const Example& example, const uint8_t* seal, uint8_t* kept, int64_t bytes) override {
    return run(example, seal, kept, bytes, 0, seal + kNonceBytes);
  }

 private:
  // In place, with the example and its place authenticated; whether all of it went well, of a given tag that it fits.
  bool run(const Example& example, const uint8_t* nonce, uint8_t* data, int64_t bytes, int encrypts, const uint8_t* tag) {
    int count = 0;
    const auto* key = reinterpret_cast<const uint8_t*>(key_.data());
    uint8_t rest[kTagBytes];
    return calls_.init(context_, calls_.chacha20_poly1305(), nullptr, key, nonce, encrypts) == 1 &&
           (!tag || calls_.control(context_, kSetTag, kTagBytes, const_cast<uint8_t*>(tag)) == 1) &&
           calls_.update(context_, nullptr, &count, reinterpret_cast<const uint8_t*>(&example.place), sizeof example.place) == 1 &&
           calls_.update(context_, nullptr, &count, example.data, static_cast<int>(example.bytes)) == 1 &&
           calls_.update(context_, data, &count, data, static_cast<int>(bytes)) == 1 && count == bytes &&
           calls_.final(context_, rest, &count) == 1;
  }

  const OpenSsl& calls_;
  void* context_;
  std::string key_;
};

}  // namespace

uint32_t crc32(const uint8_t* data, int64_t count) {
  uint32_t sum = ~0u;
  for (; count >= kPlaces; data += kPlaces, count -= kPlaces) {
    uint32_t low, high;
    std::memcpy(&low, data, 4), std::memcpy(&high, data + 4, 4);
    low ^= sum;
    sum = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
          kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; count > 0; --count) sum = sum >> 8 ^ kTables[0][(sum ^ *data++) & 0xff];
  return ~sum;
}

std::unique_ptr<Sealing> sealing(const std::string& key, const std::string& cipher) {
  if (cipher.empty()) return std::make_unique<Checksum>(key);
  return std::make_unique<Encryption>(cipher);
}

}  // namespace trainer
