// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace aisp::base {

// SHA-256 (FIPS 180-4), for telling sources and outputs apart.
class Sha256 {
 public:
  Sha256();
  Sha256& update(std::string_view bytes);
  std::string hex();  // ends the message

 private:
  void compress(const unsigned char* block);

  std::array<std::uint32_t, 8> state_;
  std::array<unsigned char, 64> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::string sha256_hex(std::string_view bytes);  // 64 hexadecimal digits

}  // namespace aisp::base
