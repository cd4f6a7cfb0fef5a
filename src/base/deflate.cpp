// SPDX-License-Identifier: Apache-2.0
#include "base/deflate.hpp"

#define ZLIB_CONST  // zlib reads its input alone
#include <zlib.h>

#include <new>
#include <stdexcept>

namespace aisp::base {
namespace {

constexpr int raw = -15;  // no header and no checksum; the whole window of 32 KiB

void set_input(z_stream& stream, std::string_view from) {
  stream.next_in = reinterpret_cast<const Bytef*>(from.data());
  stream.avail_in = static_cast<uInt>(from.size());
}
void set_output(z_stream& stream, char* to, std::size_t size) {
  stream.next_out = reinterpret_cast<Bytef*>(to);
  stream.avail_out = static_cast<uInt>(size);
}

}  // namespace

std::string deflated(std::string_view text) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, raw, 9, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc{};
  std::string bytes(deflateBound(&stream, text.size()), '\0');
  set_input(stream, text);
  set_output(stream, bytes.data(), bytes.size());
  deflate(&stream, Z_FINISH);  // ends with the text, for which the bound has room
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

std::string inflated(std::string_view bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, raw) != Z_OK) throw std::bad_alloc{};
  set_input(stream, bytes);
  std::string text;
  int status = Z_OK;
  while (status == Z_OK) {
    text.resize(2 * text.size() + 4 * bytes.size() + 64);
    set_output(stream, text.data() + stream.total_out, text.size() - stream.total_out);
    status = inflate(&stream, Z_NO_FLUSH);
  }
  text.resize(stream.total_out);
  const bool is_whole = status == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  if (!is_whole) throw std::runtime_error{"packed text is damaged"};
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
