// SPDX-License-Identifier: Apache-2.0
#include "pair/memory/snapshot.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "pair/memory/elements.cuh"

namespace aisp::pair {
namespace {

// Decodes `exponent_bits` and `mantissa_bits` after a sign, without infinities: the small formats of the OCP Microscaling
// specification.
double small_float(unsigned code, int exponent_bits, int mantissa_bits) {
  const unsigned fraction = code & ((1u << mantissa_bits) - 1), biased = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const int exponent = static_cast<int>(biased != 0 ? biased : 1) - ((1 << (exponent_bits - 1)) - 1);
  const double significand = (biased != 0 ? 1 : 0) + std::ldexp(fraction, -mantissa_bits);
  const bool negative = (code >> (exponent_bits + mantissa_bits) & 1) != 0;
  return (negative ? -1 : 1) * std::ldexp(significand, exponent);
}

std::string meaning(unsigned byte, ElementType type) {
  switch (type) {
    case ElementType::e2m1x2: return fmt::format("{:g}, {:g}", small_float(byte & 15, 2, 1), small_float(byte >> 4, 2, 1));
    case ElementType::s4x2:
      return fmt::format("{:g}, {:g}", number_of_code(byte & 15, 4, true), number_of_code(byte >> 4, 4, true));
    case ElementType::e3m2: return fmt::format("{:g}", small_float(byte & 63, 3, 2));
    default: return byte == 255 ? std::string{"NaN"} : fmt::format("2^{}", static_cast<int>(byte) - 127);
  }
}

}  // namespace

Snapshot::Snapshot(Session& session, const Buffer& buffer)
    : session_{&session}, buffer_{&buffer}, elements_{session.elements(buffer, buffer.count)} {
  const std::size_t bytes = std::max<std::size_t>(buffer.bytes(), 1);
  if (elements_.gpu >= 0) {
    check(cudaSetDevice(elements_.gpu));
    check(cudaMalloc(&data_, bytes));
    check(cudaSetDevice(session.gpu_ordinals().at(0)));
  } else {
    data_ = std::malloc(bytes);
    if (data_ == nullptr) throw std::bad_alloc{};
  }
  elements_.data = data_;
}

void Snapshot::queue() {
  elements_.count = buffer_->count;
  if (elements_.gpu < 0) return;
  const cudaStream_t stream = session_->launch().streams[static_cast<std::size_t>(buffer_->device)];
  check(cudaSetDevice(elements_.gpu));
  check(cudaMemcpyAsync(data_, buffer_->data, elements_.bytes(), cudaMemcpyDeviceToDevice, stream));
  check(cudaSetDevice(session_->gpu_ordinals().at(0)));
}

void Snapshot::finish() {
  if (elements_.gpu >= 0) return;
  const bool plain = !session_->on_gpu() || buffer_->memory == Memory::pageable;
  if (plain) std::memcpy(data_, buffer_->data, elements_.bytes());
  else check(cudaMemcpy(data_, buffer_->data, elements_.bytes(), cudaMemcpyDefault));
}

Snapshot::~Snapshot() {
  if (elements_.gpu >= 0) cudaFree(data_);
  else std::free(data_);
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : session_{other.session_}, buffer_{other.buffer_}, elements_{other.elements_}, data_{std::exchange(other.data_, nullptr)} {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  std::swap(session_, other.session_);
  std::swap(buffer_, other.buffer_);
  std::swap(elements_, other.elements_);
  std::swap(data_, other.data_);
  return *this;
}

void Snapshot::sort() { sort_elements(data_, elements_.type, elements_.element_bytes, elements_.count, elements_.gpu); }

std::vector<double> Snapshot::values(const std::vector<std::size_t>& indices) const {
  std::vector<unsigned char> host(indices.size() * elements_.element_bytes);
  gather(elements_, indices, host.data());
  std::vector<double> result(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) result[i] = element_value(host.data(), elements_.type, i);
  return result;
}

std::string element_text(double value, ElementType type) {
  const bool is_byte = value >= 0 && value <= 255 && value == std::floor(value);
  if (!holds_codes(type) || !is_byte) return fmt::format("{:.9g}", value);
  const auto byte = static_cast<unsigned>(value);
  return fmt::format("{:#04x} ({})", byte, meaning(byte, type));
}

}  // namespace aisp::pair
