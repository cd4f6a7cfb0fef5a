// SPDX-License-Identifier: Apache-2.0
#include "base/digest.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace aisp::base {
namespace {

__extension__ typedef unsigned __int128 Wide;

constexpr bool is_prime(std::uint32_t number) {
  for (std::uint32_t divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return false;
  return true;
}

// The first 32 bits of the fractional part of the square or cube root of `number`, as the standard defines its constants: the
// largest r with r^2 <= number * 2^64, or r^3 <= number * 2^96, cut to 32 bits.
constexpr std::uint32_t root_fraction(std::uint32_t number, bool cube) {
  std::uint64_t low = 0, high = std::uint64_t{1} << 37;
  while (high - low > 1) {
    const std::uint64_t middle = (low + high) / 2;
    Wide power = static_cast<Wide>(middle) * middle;
    if (cube) power *= middle;
    (power <= static_cast<Wide>(number) << (cube ? 96 : 64) ? low : high) = middle;
  }
  return static_cast<std::uint32_t>(low);
}

template <std::size_t count>
constexpr std::array<std::uint32_t, count> prime_root_fractions(bool cube) {
  std::array<std::uint32_t, count> words{};
  std::uint32_t candidate = 2;
  for (std::uint32_t& word : words) {
    while (!is_prime(candidate)) ++candidate;
    word = root_fraction(candidate++, cube);
  }
  return words;
}

constexpr auto initial_state = prime_root_fractions<8>(false);
constexpr auto round_constants = prime_root_fractions<64>(true);

std::uint32_t read_big_endian(const unsigned char* bytes) {
  return static_cast<std::uint32_t>(bytes[0]) << 24 | static_cast<std::uint32_t>(bytes[1]) << 16 |
         static_cast<std::uint32_t>(bytes[2]) << 8 | bytes[3];
}

}  // namespace

Sha256::Sha256() : state_{initial_state} {}

void Sha256::compress(const unsigned char* block) {
  std::array<std::uint32_t, 64> schedule{};
  for (std::size_t t = 0; t < 16; ++t) schedule[t] = read_big_endian(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t early = schedule[t - 15], late = schedule[t - 2];
    const std::uint32_t small0 = std::rotr(early, 7) ^ std::rotr(early, 18) ^ (early >> 3);
    const std::uint32_t small1 = std::rotr(late, 17) ^ std::rotr(late, 19) ^ (late >> 10);
    schedule[t] = schedule[t - 16] + small0 + schedule[t - 7] + small1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t big1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t first = h + big1 + choice + round_constants[t] + schedule[t];
    const std::uint32_t big0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + big0 + majority;
  }
  const std::array<std::uint32_t, 8> added{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

Sha256& Sha256::update(std::string_view bytes) {
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t taken = std::min(bytes.size(), pending_.size() - pending_bytes_);
    std::memcpy(pending_.data() + pending_bytes_, bytes.data(), taken);
    pending_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (pending_bytes_ == pending_.size()) {
      compress(pending_.data());
      pending_bytes_ = 0;
    }
  }
  return *this;
}

std::string Sha256::hex() {
  const std::uint64_t total_bits = total_bytes_ * 8;
  const std::size_t used = pending_bytes_;
  std::string padding(used < 56 ? 64 - used : 128 - used, '\0');
  padding.front() = static_cast<char>(0x80);
  for (std::size_t i = 0; i < 8; ++i) padding[padding.size() - 1 - i] = static_cast<char>(total_bits >> (8 * i));
  update(padding);
  std::string text;
  for (const std::uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
  return text;
}

std::string sha256_hex(std::string_view bytes) { return Sha256{}.update(bytes).hex(); }

}  // namespace aisp::base
