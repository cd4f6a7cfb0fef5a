// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "pair/session.hpp"

namespace aisp::pair {

// A copy of one output, on the same side (device or host) as the output itself.
class Snapshot {
 public:
  Snapshot() = default;
  // Room for the whole buffer. Allocating can wait for all work on a GPU, so it is done before what is to be caught in the act.
  Snapshot(Session& session, const Buffer& buffer);
  ~Snapshot();
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;

  // Device memory is copied by the pair's own stream, right behind what that stream holds: what other streams write later is not
  // in the copy. Host memory is copied by finish(), when the stream is idle.
  void queue();
  void finish();
  // Only the first `count` elements count from here on.
  void shorten(std::size_t count) { elements_.count = count; }

  Elements elements() const { return elements_; }
  const Buffer& buffer() const { return *buffer_; }
  void sort();
  // Values of the given elements as float64.
  std::vector<double> values(const std::vector<std::size_t>& indices) const;

 private:
  Session* session_ = nullptr;
  const Buffer* buffer_ = nullptr;
  Elements elements_;
  void* data_ = nullptr;
};

}  // namespace aisp::pair
