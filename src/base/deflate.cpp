// SPDX-License-Identifier: Apache-2.0
#include "base/deflate.hpp"

#include <libdeflate.h>

#include <memory>
#include <new>
#include <stdexcept>

namespace aisp::base {
namespace {

constexpr int smallest = 12;  // the level that packs best

template <class Object>
auto owned(Object* object, void (*release)(Object*)) {
  if (object == nullptr) throw std::bad_alloc{};
  return std::unique_ptr<Object, void (*)(Object*)>{object, release};
}

}  // namespace

std::string deflated(std::string_view text) {
  const auto compressor = owned(libdeflate_alloc_compressor(smallest), libdeflate_free_compressor);
  std::string bytes(libdeflate_deflate_compress_bound(compressor.get(), text.size()), '\0');
  bytes.resize(libdeflate_deflate_compress(compressor.get(), text.data(), text.size(), bytes.data(), bytes.size()));
  return bytes;
}

std::string inflated(std::string_view bytes) {
  const auto decompressor = owned(libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  std::string text;
  std::size_t read = 0, written = 0;
  libdeflate_result result = LIBDEFLATE_INSUFFICIENT_SPACE;
  while (result == LIBDEFLATE_INSUFFICIENT_SPACE) {
    text.resize(2 * text.size() + 4 * bytes.size() + 64);
    result = libdeflate_deflate_decompress_ex(decompressor.get(), bytes.data(), bytes.size(), text.data(), text.size(), &read,
                                              &written);
  }
  if (result != LIBDEFLATE_SUCCESS || read != bytes.size()) throw std::runtime_error{"packed text is damaged"};
  text.resize(written);
  return text;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  unsigned bits = 0, count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) result += digits[bits >> (count - 6) & 63];
  }
  if (count > 0) result += digits[bits << (6 - count) & 63];
  while (result.size() % 4 != 0) result += '=';
  return result;
}

}  // namespace aisp::base
