// SPDX-License-Identifier: Apache-2.0
#include "verify/snapshot.hpp"

#include <aisp/check.hpp>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace aisp::verify {
namespace {

void copy(void* to, const void* from, std::size_t bytes, bool plain) {
  if (plain) std::memcpy(to, from, bytes);
  else check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

}  // namespace

Snapshot::Snapshot(pair::Session& session, const Buffer& buffer) : elements_{session.elements(buffer, 0)} {
  const std::size_t bytes = std::max<std::size_t>(buffer.bytes(), 1);
  if (elements_.gpu >= 0) {
    check(cudaSetDevice(elements_.gpu));
    check(cudaMalloc(&data_, bytes));
  } else {
    data_ = std::malloc(bytes);
    if (data_ == nullptr) throw std::bad_alloc{};
  }
}

void Snapshot::take(pair::Session& session, const Buffer& buffer, std::size_t count) {
  elements_ = session.elements(buffer, count);
  if (elements_.gpu >= 0) {
    // On the pair's own stream: what another stream writes later is not in the copy.
    const cudaStream_t stream = session.launch().streams[static_cast<std::size_t>(buffer.device)];
    check(cudaSetDevice(elements_.gpu));
    check(cudaMemcpyAsync(data_, elements_.data, elements_.bytes(), cudaMemcpyDeviceToDevice, stream));
    check(cudaStreamSynchronize(stream));
  } else {
    copy(data_, elements_.data, elements_.bytes(), !session.on_gpu() || buffer.memory == Memory::pageable);
  }
  elements_.data = data_;
}

Snapshot::~Snapshot() {
  if (elements_.gpu >= 0) cudaFree(data_);
  else std::free(data_);
}

Snapshot::Snapshot(Snapshot&& other) noexcept : elements_{other.elements_}, data_{std::exchange(other.data_, nullptr)} {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  std::swap(elements_, other.elements_);
  std::swap(data_, other.data_);
  return *this;
}

void Snapshot::sort() { pair::sort_elements(data_, elements_.type, elements_.element_bytes, elements_.count, elements_.gpu); }

std::vector<double> Snapshot::values(const std::vector<std::size_t>& indices) const {
  std::vector<unsigned char> host(indices.size() * elements_.element_bytes);
  pair::gather(elements_, indices, host.data());
  std::vector<double> result(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) result[i] = pair::element_value(host.data(), elements_.type, i);
  return result;
}

}  // namespace aisp::verify
